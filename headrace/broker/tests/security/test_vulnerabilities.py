"""The table of `headrace/broker/security/README.md`: each CVE has a test that names it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
TABLE = (ROOT / "headrace" / "broker" / "security" / "README.md").read_text()
CVE = re.compile(r"CVE-\d{4}-\d{4,6}")
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows() -> list[tuple[list[str], list[tuple[str, str]]]]:
    """Return the CVEs of each row, and its tests."""
    lines = [line for line in TABLE.splitlines() if line.startswith("| CVE-")]
    return [(CVE.findall(line), TEST.findall(line)) for line in lines]


def source_of(file: str, test: str) -> str:
    """Return the source of a test, with its name and its docstring."""
    text = (ROOT / file).read_text()
    found = re.search(
        rf"^(?:async )?def {test}\(.*?(?=^(?:async def|def|class|@)|\Z)", text, re.MULTILINE | re.DOTALL
    )
    assert found is not None, f"{file} has no test {test}"
    return found[0]


def test_each_test_of_the_table_is_there_and_names_its_cve() -> None:
    held = [(names, tests) for names, tests in rows() if tests]
    assert len(held) >= 18
    for names, tests in held:
        said = "".join(source_of(*test) for test in tests).replace("_", "-").lower()
        for name in names:
            assert name.lower() in said, f"{name}: no test of {tests} names it"


def test_no_cve_is_named_in_a_test_and_not_in_the_table() -> None:
    listed = {name for names, _ in rows() for name in names}
    for room in ("headrace/broker/tests", "headrace/protocol/tests", "headrace/tablelayer/tests"):
        for file in (ROOT / room).rglob("test_*.py"):
            text = file.read_text()
            named = {name.replace("_", "-").upper() for name in re.findall(r"cve_\d{4}_\d{4,6}", text)}
            assert {*CVE.findall(text), *named} <= listed, file
