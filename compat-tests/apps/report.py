"""The applications' part of COMPATIBILITY.md; the rest is the foreign clients' (`foreign/report.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PATH = Path(__file__).resolve().parent.parent / "COMPATIBILITY.md"
TITLE = "## Applications"
HEAD = f"""{TITLE}

Each application was installed from its registry and run against a server. apps/README.md describes what each does.

|application|version|scenario|outcome|
|-|-|-|-|
"""


def applications() -> str:
    """Return that part as it is; empty if there is none."""
    _, title, text = PATH.read_text().partition(f"\n{TITLE}")
    return title + text


def write_applications(outcomes: Mapping[str, tuple[str, str, str]]) -> None:
    """Put (version, what, outcome) of each application into that part; other applications keep their lines."""
    before = PATH.read_text().partition(f"\n{TITLE}")[0].rstrip("\n")
    lines = [line.strip("|").split("|") for line in applications().splitlines() if line.startswith("|")]
    known = {name: words for name, *words in lines[2:]}
    merged = {**known, **{name: list(words) for name, words in outcomes.items()}}
    rows = "".join(f"|{name}|{'|'.join(merged[name])}|\n" for name in sorted(merged, key=str.lower))
    PATH.write_text(f"{before}\n\n{HEAD}{rows}")
