"""`python -m prose [PATH ...]`: print `file:line: rule: sentence` for each sentence to rewrite.

The exit status is 1 if there are any.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from prose.passages import SUFFIXES, passages_of
from prose.rules import RULES, Finding, findings

ROOT = Path(__file__).parents[1]


def files(paths: list[Path]) -> list[Path]:
    """Return the files with prose that git knows or would add, below `paths`, relative to the repository.

    Libraries of others are left out: the scripts of a folder `vendor`.
    """
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *(f"*{each}" for each in SUFFIXES)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    chosen = [path.resolve() for path in paths]
    found = sorted({Path(name) for name in listed.stdout.splitlines()})
    return [
        path
        for path in found
        if (ROOT / path).is_file()
        and not (path.suffix == ".js" and path.parent.name == "vendor")
        and (not chosen or any((ROOT / path).is_relative_to(each) for each in chosen))
    ]


def folder(path: Path) -> str:
    """Return the part of the tree that a file is counted in: its first two folders."""
    return "/".join(path.parent.parts[:2]) or "."


def tree(paths: list[Path]) -> Iterator[tuple[Path, Finding]]:
    """Return the sentences that break a rule in the files below `paths`."""
    for path in files(paths):
        for passage in passages_of(ROOT / path):
            for finding in findings(passage):
                yield path, finding


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "python -m prose", description="Check the English of docstrings, comments, messages and pages."
    )
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH", help="Files and folders to check; all by default."
    )
    parser.add_argument("--count", action="store_true", help="Print the number of findings by rule only.")
    parser.add_argument(
        "--by-folder", action="store_true", help="Print the number of findings by folder only."
    )
    arguments = parser.parse_args(words)
    found = list(tree(arguments.paths))
    if arguments.count:
        counted = Counter(finding.rule for _, finding in found)
        for rule in RULES:
            print(f"{counted[rule]:6} {rule}: {RULES[rule]}")
    if arguments.by_folder:
        for name, count in sorted(Counter(folder(path) for path, _ in found).items()):
            print(f"{count:6} {name}")
    if not arguments.count and not arguments.by_folder:
        for path, finding in found:
            print(f"{path}:{finding.line}: {finding.rule}: {finding.sentence}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
