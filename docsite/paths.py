"""Paths of the repository that Markdown names in backticks but that do not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from docsite.pages import ROOT

_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
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


@cache
def _folders() -> frozenset[str]:
    """Return the names of the folders at the top of the repository, without those that commands make."""
    return frozenset(path.name for path in ROOT.iterdir() if path.is_dir()) - {
        "build",
        "dist",
        ".demo",
        ".bench",
    }
