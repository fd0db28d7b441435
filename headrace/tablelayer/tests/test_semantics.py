"""Every rule of SEMANTICS.md has a test that is named after it, and no test is named after an unknown rule."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
_HEADING = re.compile(r"^## R(\d+) (.*)$", re.MULTILINE)
_ITEM = re.compile(r"(?:^|(?<=[.*)] ))(\d+)\. ", re.MULTILINE)
_NAME = re.compile(r"test_r(\d+)_(?:(\d+)_)?")
Rule = tuple[int, int]
"""A rule and its number inside; 0: the rule as a whole."""


def rules(text: str) -> dict[Rule, bool]:
    """Return the numbered sentences of each rule, or the rule if it has none, and whether this release keeps it."""
    found: dict[Rule, bool] = {}
    parts = _HEADING.split(text)[1:]
    for number, title, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        count = 0
        for item in _ITEM.finditer(body):
            count += int(item[1]) == count + 1
        for each in range(1, count + 1) if count else (0,):
            found[int(number), each] = not title.endswith("(to come)")
    return found


def named(tests: Path) -> Iterator[tuple[Rule, str]]:
    """Return the tests that are named after rules, without those that only the soak runs."""
    for path in sorted(tests.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            name = _NAME.match(node.name)
            if name and not any("soak" in ast.unparse(each) for each in node.decorator_list):
                yield (int(name[1]), int(name[2] or 0)), f"{path.name}::{node.name}"


def problems(text: str, tests: Path) -> tuple[list[str], list[str]]:
    """Rules without a test, tests without a rule."""
    promised, found = rules(text), dict(named(tests))
    missing = [
        f"R{rule}.{item}" for (rule, item), kept in promised.items() if kept and (rule, item) not in found
    ]
    known = {*promised, *((rule, 0) for rule, _ in promised)}
    return missing, [test for rule, test in found.items() if rule not in known]


def test_every_rule_has_a_test_by_name() -> None:
    assert problems((TESTS.parent / "SEMANTICS.md").read_text(), TESTS) == ([], [])


@pytest.mark.parametrize(
    ("name", "missing", "unknown"),
    [
        ("test_r1_1_a", ["R1.2", "R2.0"], []),
        ("test_r1_2_a", ["R1.1", "R2.0"], []),
        ("test_r1_a", ["R1.1", "R1.2", "R2.0"], []),
        ("test_r2_2_things", ["R1.1", "R1.2", "R2.0"], ["test_it.py::test_r2_2_things"]),
        ("test_r2_things", ["R1.1", "R1.2"], []),
        ("test_r3_things", ["R1.1", "R1.2", "R2.0"], []),
        ("test_r4_things", ["R1.1", "R1.2", "R2.0"], ["test_it.py::test_r4_things"]),
        ("test_other", ["R1.1", "R1.2", "R2.0"], []),
    ],
)
def test_a_rule_without_a_test_and_a_test_without_a_rule_are_found(
    tmp_path: Path, name: str, missing: list[str], unknown: list[str]
) -> None:
    text = "# Rules\n## R1 One\n1. This, see R9. 2. *That.* Not 7. times.\n"
    text += "## R2 Two\nAll.\n## R3 Three (to come)\nAll.\n"
    folder = tmp_path / "below"
    folder.mkdir()
    (folder / "test_it.py").write_text(f"def {name}(): ...\n@pytest.mark.soak\ndef test_r2_long(): ...\n")
    assert problems(text, tmp_path) == (missing, unknown)
