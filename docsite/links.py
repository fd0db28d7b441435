"""Dead links between the Markdown files of the repository: links to missing files or headings.

A link leads to a file of the repository. The site's pages have the same links, adapted by `docsite.pages.moved`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from docsite.pages import DOCS, READMES, ROOT

_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)


def markdown_files() -> list[Path]:
    """Return the Markdown files that git tracks or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def slug(heading: str) -> str:
    """Return the anchor of a heading, on GitHub and in the site."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


@cache
def anchors(path: Path) -> frozenset[str]:
    found: dict[str, int] = {}
    names = set()
    for heading in _HEADING.findall(_text(path)):
        name = slug(heading)
        count = found.get(name, 0)
        found[name] = count + 1
        names.add(name if not count else f"{name}-{count}")
    return frozenset(names)


@cache
def _text(path: Path) -> str:
    """Return the text of a page without code, in which brackets are not links."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def _in_site(path: Path) -> bool:
    return path.is_relative_to(DOCS) or path.relative_to(ROOT).as_posix() in READMES.values()


def dead_links(path: Path) -> Iterator[str]:
    """Return a line for each dead link of a page."""
    for link in _LINK.findall(re.sub(r"`[^`\n]*`", "", _text(path))):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        to = path if not file else (path.parent / file).resolve()
        where = path.relative_to(ROOT)
        if not to.exists():
            yield f"{where}: {link}: there is no such file"
        elif path.is_relative_to(DOCS) and not _in_site(to):
            yield f"{where}: {link}: outside of the site"
        elif anchor and to.suffix == ".md" and anchor not in anchors(to):
            yield f"{where}: {link}: there is no such heading"
