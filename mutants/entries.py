"""Read and check the list of mutants, `mutants/*.toml`. README.md describes an entry.

An entry is a text that stands once in a source file, and the text that replaces it. `problems` finds invalid entries
without running a test: a duplicate name, a text that is missing or not unique, a replacement that changes nothing or is
not valid Python, a missing test.
"""

from __future__ import annotations
import __future__

import ast
import itertools
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


def _what_runs(source: str, flags: int) -> tuple[Any, ...]:
    """Return the compiled code without its positions in the source."""
    return _without_places(compile(source, "source", "exec", flags, dont_inherit=True))


def _without_places(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(
        _without_places(each) if isinstance(each, CodeType) else (type(each), repr(each))
        for each in code.co_consts
    )
    return (
        *(code.co_name, code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        *(code.co_flags, code.co_argcount, code.co_kwonlyargcount, code.co_exceptiontable, constants),
    )


class _Source:
    """A source file, parsed once: a change within one function needs only this function compiled."""

    def __init__(self, text: str) -> None:
        tree = ast.parse(text)
        self._text = text
        starts = [0, *itertools.accumulate(len(line) for line in text.splitlines(keepends=True))]
        self._functions = [
            (
                starts[min([each.lineno, *(one.lineno for one in each.decorator_list)]) - 1],
                starts[each.end_lineno],
            )
            for each in _functions(tree)
            if each.end_lineno
        ]
        is_lazy = any(isinstance(each, ast.ImportFrom) and each.module == "__future__" for each in tree.body)
        flags = __future__.annotations.compiler_flag if is_lazy else 0
        self._runs = cache(lambda text: _what_runs(text, flags))

    def changes_what_runs(self, mutant: Mutant) -> bool:
        """Raise SyntaxError if the replacement is not valid Python."""
        start = self._text.index(mutant.old)
        end = start + len(mutant.old)
        first, last = next(
            (each for each in self._functions if each[0] <= start and end < each[1]), (0, len(self._text))
        )
        # A method keeps its indentation in a class, and what it reads of one.
        head = "class _:\n" if self._text[first : first + 1] == " " else ""
        before, after = (
            head + self._text[first:start] + each + self._text[end:last] for each in (mutant.old, mutant.new)
        )
        return bool(self._runs(before) != self._runs(after))


def _functions(owner: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions of a module and the methods of its classes, without those inside of them."""
    for each in owner.body:
        if isinstance(each, ast.ClassDef):
            yield from _functions(each)
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield each


class _Tree:
    """The files of a tree, each read and parsed once."""

    def __init__(self, root: Path) -> None:
        self.text = cache(lambda name: (root / name).read_text() if (root / name).is_file() else None)
        self.source = cache(lambda name: _Source(self.text(name) or ""))
        self.names = cache(self._names)

    def problems(self, mutant: Mutant) -> Iterator[str]:
        source = self.text(mutant.file)
        if source is None:
            yield f"{mutant.name}: there is no file {mutant.file}"
            return
        try:
            mutant.applied(source)
        except InvalidMutantError as error:
            yield str(error)
            return
        if mutant.file.endswith(".py"):
            try:
                if not self.source(mutant.file).changes_what_runs(mutant):
                    yield f"{mutant.name}: the replacement changes nothing that runs"
            except SyntaxError as error:
                yield f"{mutant.name}: with its replacement {mutant.file} is not valid Python: {error}"
        for test in mutant.tests:
            file, _, name = test.partition("::")
            words = name.partition("[")[0].split("::")
            if not {words[0], words[-1]} <= self.names(file) | {"runTest"}:
                yield f"{mutant.name}: there is no test {test}"

    def _names(self, file: str) -> frozenset[str]:
        """Return the names that a file and its classes define: functions, classes, and targets of assignments."""
        found: set[str] = set()
        owners: list[ast.AST] = [ast.parse(self.text(file) or "")]
        while owners:
            for node in ast.iter_child_nodes(owners.pop()):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    found.add(node.name)
                elif isinstance(node, ast.ClassDef):
                    found.add(node.name)
                    owners.append(node)
                elif isinstance(node, ast.Assign):
                    found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        return frozenset(found)
