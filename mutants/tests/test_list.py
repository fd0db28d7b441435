"""Check that the list of mutants can be applied. `make mutants` shows that each mutant is killed."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from mutants.entries import InvalidMutantError, Mutant, load, parse, problems
from mutants.workspace import Workspace

ENTRY = """
[[mutant]]
name = "{name}"
promise = "a sum is a sum"
file = "source.py"
old = '''{old}'''
new = '''{new}'''
tests = ["test_source.py::test_sum[1]"]
"""

SOURCE = """
def add(a, b):
    return a + b  # sum


class Counter:
    @property
    def next(self):
        many = self.rate

        def more():
            nonlocal many
            many += 1

        more()
        return many


def three():
    return 3  # three


RATE = 1
"""

AREAS = {
    "the log": r"headrace/broker/log/(partition_log|segment|index)",
    "power cuts": r"[Pp]ower|fsync",
    "recovery": r"headrace/broker/log/recovery",
    "producers": r"headrace/broker/log/producer_state",
    "transactions": r"headrace/broker/transactions/",
    "groups": r"headrace/broker/groups/",
    "the high watermark": r"[Hh]igh watermark|headrace/broker/partitions/partition",
    "the tablet": r"headrace/tablelayer/server/store/tablet",
    "merge engines": r"headrace/tablelayer/server/merge/",
    "statistics": r"headrace/tablelayer/model/(batches/statistics|filters/)|headrace/tablelayer/server/bucket/extremes",
    "projection": r"headrace/tablelayer/server/read/projection",
    "JSON": r"headrace/tablelayer/model/json/",
    "Avro": r"headrace/tablelayer/model/avro/",
    "Debezium": r"headrace/tablelayer/model/json/debezium|Debezium|debezium",
    "schema evolution": r"headrace/tablelayer/model/(table/evolution|rows/versions)",
    "snapshots": r"headrace/tablelayer/server/store/snapshots",
    "staged commits": r"headrace/tablelayer/server/staged/",
    "tier rounds": r"headrace/tablelayer/lake/tier|headrace/tablelayer/server/lake/machine",
    "union reads": r"headrace/tablelayer/lake/union_",
    "the client's lane": r"headrace/tablelayer/client/write/lane",
}
"""The areas that must have mutants: a regular expression over the entries' files, names and promises."""


def entry(name: str = "sum", old: str = "a + b", new: str = "a - b") -> Mutant:
    (mutant,) = parse(ENTRY.format(name=name, old=old, new=new), "list.toml")
    return mutant


kept = cache(load)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "source.py").write_text(SOURCE)
    (tmp_path / "test_source.py").write_text("def test_sum(): ...\n")
    return tmp_path


def test_every_entry_of_the_kept_list_applies_to_the_source_as_it_is() -> None:
    assert problems(kept()) == []


def test_the_kept_list_is_long() -> None:
    assert len(kept()) >= 200


@pytest.mark.parametrize("area", AREAS)
def test_the_kept_list_has_entries_of_every_area(area: str) -> None:
    found = [
        each.name for each in kept() if re.search(AREAS[area], f"{each.file}\n{each.name}\n{each.promise}")
    ]
    assert len(found) >= 3, found


def test_an_entry_that_fits_has_no_problem(tree: Path) -> None:
    assert problems([entry()], tree) == []
    assert problems([entry(old="self.rate", new="super().rate")], tree) == []
    assert problems([entry(old="    @property\n", new="")], tree) == []
    assert problems([entry(old="RATE = 1", new="RATE = 2")], tree) == []
    assert problems([entry(old="3  # three\n\n\nRATE = 1", new="4\n\n\nRATE = 1")], tree) == []


@pytest.mark.parametrize(
    ("mutants", "words"),
    [
        ([entry(), entry(new="a * b")], "sum: the name stands 2 times"),
        ([entry(old="a ++ b")], "stands 0 times in source.py"),
        ([entry(old="a")], "not once"),
        ([entry(new="a + (b)")], "changes nothing"),
        ([entry(old="# sum", new="# the sum")], "changes nothing"),
        ([entry(new="a +")], "is not valid Python"),
        ([entry(old="RATE = 1", new="RATE = (1)")], "changes nothing"),
        ([entry(old="self.rate", new="(self.rate)")], "changes nothing"),
        ([entry(old="self.rate", new="self.")], "is not valid Python"),
        ([entry(old="3  # three\n\n\nRATE", new="3\n\nRATE")], "changes nothing"),
        ([entry(old="nonlocal many", new="nonlocal many, few")], "is not valid Python"),
    ],
)
def test_a_useless_entry_is_found(tree: Path, mutants: list[Mutant], words: str) -> None:
    (problem,) = problems(mutants, tree)
    assert words in problem


def test_a_file_or_a_test_that_is_gone_is_found(tree: Path) -> None:
    (tree / "test_source.py").write_text("def test_other(): ...\n")
    assert problems([entry()], tree) == ["sum: there is no test test_source.py::test_sum[1]"]
    (tree / "source.py").unlink()
    assert problems([entry()], tree) == ["sum: there is no file source.py"]


def test_an_entry_has_all_fields_and_no_other() -> None:
    with pytest.raises(InvalidMutantError, match="entry 1 has the fields"):
        parse(ENTRY.replace("promise", "because"), "list.toml")
    with pytest.raises(InvalidMutantError, match="list of one test"):
        parse(ENTRY.replace('["test_source.py::test_sum[1]"]', "[]"), "list.toml")


def test_a_workspace_is_as_it_was_after_a_mutant(tree: Path) -> None:
    before = (tree / "source.py").stat().st_mtime_ns
    with Workspace(tree) as space:
        path = space.root / "source.py"
        with space.mutated(entry()):
            assert "a - b" in path.read_text()
            assert path.stat().st_mtime_ns != before
        assert path.read_text() == (tree / "source.py").read_text()
        assert path.stat().st_mtime_ns == before
    assert not space.root.exists()


def test_kernels_of_a_file_and_of_those_that_import_it_are_put_aside(tmp_path: Path) -> None:
    (tmp_path / "source.py").write_text("import numba\ndef add(a, b): return a + b\n")
    (tmp_path / "middle.py").write_text("import numba\nfrom source import add\n")
    (tmp_path / "caller.py").write_text("import numba\nimport middle\n")
    (tmp_path / "other.py").write_text("import numba\n")
    cache = tmp_path / "__pycache__"
    cache.mkdir()
    files = {
        f"{stem}.f-1.py311.{kind}"
        for stem in ("source", "middle", "caller", "other")
        for kind in ("nbi", "nbc")
    }
    for name in files:
        (cache / name).write_text("before")
    with Workspace(tmp_path) as space:
        kept = space.root / "__pycache__"
        assert space.has_kernels(entry())
        with space.mutated(entry()):
            assert {path.name for path in kept.iterdir()} == {"other.f-1.py311.nbi", "other.f-1.py311.nbc"}
            (kept / "caller.f-1.py311.nbi").write_text("of the mutant")
        assert {path.name: path.read_text() for path in kept.iterdir()} == dict.fromkeys(files, "before")
