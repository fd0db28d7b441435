"""Read and check the list of mutants, `mutants/*.toml`. README.md describes an entry.

An entry is a text that stands once in a source file, and the text that replaces it. `problems` finds invalid entries
without running a test: a duplicate name, a text that is missing or not unique, a replacement that changes nothing or is
not valid Python, a missing test.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
FOLDER: Final = Path(__file__).parent
_FIELDS: Final = frozenset({"name", "promise", "file", "old", "new", "tests"})


class InvalidMutantError(Exception):
    """An entry cannot be read or applied; the text names it and says why."""


@dataclass(frozen=True)
class Mutant:
    """One defect: `new` replaces `old`, which stands once in `file`. At least one of `tests` must fail then.

    `file` is relative to the root; `tests` are pytest's ids.
    """

    name: str
    promise: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, source: str) -> str:
        count = source.count(self.old)
        if count != 1:
            raise InvalidMutantError(f"{self.name}: its text stands {count} times in {self.file}, not once")
        return source.replace(self.old, self.new)

    @property
    def test_files(self) -> frozenset[str]:
        return frozenset(test.partition("::")[0] for test in self.tests)


def load(folder: Path = FOLDER) -> list[Mutant]:
    """Return all entries, in the order of file names and then of the files."""
    return [mutant for path in sorted(folder.glob("*.toml")) for mutant in parse(path.read_text(), path.name)]


def parse(text: str, source: str) -> list[Mutant]:
    """Return the entries of one file; `source` names the file in errors."""
    try:
        entries = tomllib.loads(text).get("mutant", [])
    except tomllib.TOMLDecodeError as error:
        raise InvalidMutantError(f"{source}: {error}") from error
    return [_entry(entry, f"{source}, entry {number}") for number, entry in enumerate(entries, 1)]


def _entry(entry: dict[str, Any], where: str) -> Mutant:
    if set(entry) != _FIELDS:
        raise InvalidMutantError(f"{where} has the fields {sorted(entry)}, not {sorted(_FIELDS)}")
    if not entry["tests"] or isinstance(entry["tests"], str):
        raise InvalidMutantError(f"{where}, {entry['name']}: `tests` is a list of one test at least")
    return Mutant(**{**entry, "tests": tuple(entry["tests"])})


def problems(mutants: Sequence[Mutant], root: Path = ROOT) -> list[str]:
    """Return one line for each invalid entry of the list, without running a test."""
    found = [
        f"{name}: the name stands {count} times in the list"
        for name, count in Counter(mutant.name for mutant in mutants).items()
        if count > 1
    ]
    tree = _Tree(root)
    for mutant in mutants:
        found += tree.problems(mutant)
    return found


def _what_runs(source: str) -> tuple[Any, ...]:
    """Return the compiled code without its positions in the source."""
    return _without_places(compile(source, "source", "exec", dont_inherit=True))


def _without_places(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(
        _without_places(each) if isinstance(each, CodeType) else (type(each), repr(each))
        for each in code.co_consts
    )
    return (
        *(code.co_name, code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        *(code.co_flags, code.co_argcount, code.co_kwonlyargcount, code.co_exceptiontable, constants),
    )


class _Tree:
    """The files of a tree, each read and parsed once."""

    def __init__(self, root: Path) -> None:
        self.text = cache(lambda name: (root / name).read_text() if (root / name).is_file() else None)
        self.runs = cache(lambda name: _what_runs(self.text(name) or ""))
        self.names = cache(self._names)

    def problems(self, mutant: Mutant) -> Iterator[str]:
        source = self.text(mutant.file)
        if source is None:
            yield f"{mutant.name}: there is no file {mutant.file}"
            return
        try:
            changed = mutant.applied(source)
        except InvalidMutantError as error:
            yield str(error)
            return
        if mutant.file.endswith(".py"):
            try:
                if _what_runs(changed) == self.runs(mutant.file):
                    yield f"{mutant.name}: the replacement changes nothing that runs"
            except SyntaxError as error:
                yield f"{mutant.name}: with its replacement {mutant.file} is not valid Python: {error}"
        for test in mutant.tests:
            file, _, name = test.partition("::")
            words = name.partition("[")[0].split("::")
            if not {words[0], words[-1]} <= self.names(file) | {"runTest"}:
                yield f"{mutant.name}: there is no test {test}"

    def _names(self, file: str) -> frozenset[str]:
        """Return the names that a file defines: functions, classes, and targets of assignments."""
        found: set[str] = set()
        for node in ast.walk(ast.parse(self.text(file) or "")):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Assign):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        return frozenset(found)
