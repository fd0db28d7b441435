"""The pages of the site, and the folder that it is built from."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
READMES = {
    "internals/broker.md": "headrace/broker/README.md",
    "internals/protocol.md": "headrace/protocol/README.md",
    "internals/tablelayer.md": "headrace/tablelayer/README.md",
    "internals/groups.md": "headrace/broker/groups/README.md",
    "internals/vulnerabilities.md": "headrace/broker/security/README.md",
    "internals/semantics.md": "headrace/tablelayer/SEMANTICS.md",
    "internals/benchmarks.md": "bench/README.md",
    "internals/mutants.md": "mutants/README.md",
    "internals/contributing.md": "CONTRIBUTING.md",
    "metrics.md": "headrace/tablelayer/METRICS.md",
    "table-options.md": "headrace/tablelayer/OPTIONS.md",
    "compatibility.md": "compat-tests/COMPATIBILITY.md",
    "findings.md": "compat-tests/FINDINGS.md",
}
"""READMEs and pages beside the code, by their place in the site."""
_LINK = re.compile(r"(?<!!)\[([^\]\n]*(?:`[^`]*`)?[^\]\n]*)\]\(([^)\s]+)\)")


def written() -> Iterator[Path]:
    """Return the pages of `docs/`, relative to it."""
    for path in sorted(DOCS.rglob("*.md")):
        yield path.relative_to(DOCS)


def assemble(target: Path) -> None:
    """Make the folder that the site is built from, and replace an earlier one."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(DOCS, target)
    pages = {page.as_posix(): f"docs/{page.as_posix()}" for page in written()}
    for name, source in (pages | READMES).items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(moved(source, name), encoding="utf-8")


def moved(source: str, name: str) -> str:
    """Return a Markdown file as a page. Links to other pages are adapted; links to files of the repository become
    names.
    """
    places = {of: page for page, of in READMES.items()}
    here = ROOT / source

    def relink(found: re.Match[str]) -> str:
        text, link = found.groups()
        if "://" in link or link.startswith("#"):
            return found.group()
        file, _, anchor = link.partition("#")
        to = (here.parent / file).resolve().relative_to(ROOT).as_posix()
        page = places.get(to) or (to.removeprefix("docs/") if to.startswith("docs/") else None)
        if page is None:
            return f"{text} (`{to}`)" if to not in text else text
        up = "../" * name.count("/")
        return f"[{text}]({up}{page}{'#' + anchor if anchor else ''})"

    return _LINK.sub(relink, here.read_text(encoding="utf-8"))
