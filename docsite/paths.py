"""Paths of the repository that Markdown and sources name in backticks but that do not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from docsite.pages import ROOT

_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_MODULE = re.compile(r"`([\w./-]+\.py)`")
_PATH = re.compile(r"\.?\w[\w.-]*(?:/[\w.*-]+)*/?(?:::\w+)?")


def dead_paths(page: Path) -> Iterator[str]:
    """Return a line for each path that begins with a top folder of the repository and does not exist.

    A path may have `*`. A test may follow `::`; the file must have its function.
    """
    text = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), page.read_text(encoding="utf-8"))
    for code in _CODE.finditer(text):
        name, _, test = code[1].partition("::")
        if not _PATH.fullmatch(code[1]) or "/" not in name or name.partition("/")[0] not in _folders():
            continue
        found = sorted(ROOT.glob(name.rstrip("/")))
        if not found or (test and f"def {test}(" not in found[0].read_text(encoding="utf-8")):
            line = text.count("\n", 0, code.start()) + 1
            yield f"{page}:{line}: `{code[1]}`: there is no such file, folder or test"


def dead_modules(source: Path) -> Iterator[str]:
    """Return a line for each file of Python that a source names, by the end of its path, and that does not exist."""
    text = source.read_text(encoding="utf-8")
    for code in _MODULE.finditer(text):
        if code[1] not in _modules():
            line = text.count("\n", 0, code.start()) + 1
            yield f"{source}:{line}: `{code[1]}`: there is no such file"


def sources() -> list[Path]:
    """Return the files of Python in the folders at the top of the repository."""
    folders = sorted(name for name in _folders() if not name.startswith("."))
    return [*ROOT.glob("*.py"), *(path for folder in folders for path in ROOT.joinpath(folder).rglob("*.py"))]


@cache
def _modules() -> frozenset[str]:
    """Return every end of the path of every file of Python."""
    ends = set[str]()
    for source in sources():
        parts = source.relative_to(ROOT).parts
        ends.update("/".join(parts[at:]) for at in range(len(parts)))
    return frozenset(ends)


@cache
def _folders() -> frozenset[str]:
    """Return the names of the folders at the top of the repository, without those that commands make."""
    return frozenset(path.name for path in ROOT.iterdir() if path.is_dir()) - {
        "build",
        "dist",
        ".demo",
        ".bench",
    }
