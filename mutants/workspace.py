"""A copy of the tree in which mutants are applied and taken back, one at a time.

The copy keeps modification times and `__pycache__`, so Python's bytecode and numba's kernels of untouched files stay
valid. numba checks only the file of a kernel, not the files of the kernels that it calls. While a mutant of a file with
kernels runs, the cached kernels of this file and of all its importers are moved aside.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from mutants.entries import ROOT, Mutant

_LATER_NS: Final = 10 * 10**9  # Python compares whole seconds: a mutant must never look as old as its file


@dataclass(frozen=True)
class Run:
    """The result of one call of pytest; no exit code means that it did not end in time."""

    code: int | None
    output: str


class Workspace:
    """The copy at `root`, inside of `with Workspace() as space`. Used by one thread at a time."""

    def __init__(self, root: Path = ROOT) -> None:
        self._source = root
        self._folder = Path(tempfile.mkdtemp(prefix="mutants-"))
        self.root = self._folder / "tree"
        self._host: subprocess.Popen[str] | None = None

    def __enter__(self) -> Workspace:
        shutil.copytree(self._source, self.root, ignore=shutil.ignore_patterns(".*"), symlinks=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._host is not None:
            self._host.terminate()
            self._host.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    def pytest(self, tests: Sequence[str], timeout_s: float) -> Run:
        """Run these tests in the copy, up to the first failure."""
        if self._host is None:
            # Processes that tests start import from the copy, too. A mutant leaves no bytecode behind.
            paths = {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
            self._host = subprocess.Popen(
                [sys.executable, "-m", "mutants.host"],
                cwd=self.root,
                env={**os.environ, **paths},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._host.stdin is not None
        assert self._host.stdout is not None
        output = self._folder / "output"
        asked = {"tests": list(tests), "timeout_s": timeout_s, "output": str(output)}
        self._host.stdin.write(json.dumps(asked) + "\n")
        self._host.stdin.flush()
        answer = self._host.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that runs the tests ended with {self._host.wait()}")
        return Run(json.loads(answer), output.read_text(errors="replace"))

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Apply the mutant to the copy. Raise InvalidMutantError unless the file has its text exactly once."""
        path = self.root / mutant.file
        original, times = path.read_bytes(), path.stat()
        changed = mutant.applied(original.decode())
        aside = self._folder / "aside"
        kernels = self._kernels.get(path, frozenset())
        for module in kernels:
            _move_kernels(module, aside)
        try:
            path.write_text(changed)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + _LATER_NS))
            yield
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            for module in kernels:
                for stale in _cached_kernels(module):
                    stale.unlink()
                _move_kernels(module, aside, back=True)
            shutil.rmtree(aside, ignore_errors=True)

    def has_kernels(self, mutant: Mutant) -> bool:
        """Return whether the mutant causes kernels to be compiled again, which takes up to minutes."""
        return self.root / mutant.file in self._kernels

    @cached_property
    def _kernels(self) -> dict[Path, frozenset[Path]]:
        """Each file with kernels, mapped to itself and all files with kernels that import it, directly or not."""
        files = [path for path in self.root.rglob("*.py") if "numba" in path.read_text()]
        imported = {path: self._imports(path) & set(files) for path in files}
        reached = {path: {path} for path in files}
        growing = True
        while growing:
            growing = False
            for path, needs in imported.items():
                for importers in reached.values():
                    if path not in importers and needs & importers:
                        importers.add(path)
                        growing = True
        return {path: frozenset(importers) for path, importers in reached.items()}

    def _imports(self, path: Path) -> set[Path]:
        """Return the files of the tree that a file imports by their full names, as all modules here do."""
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        return {self.root / (name.replace(".", "/") + ".py") for name in names}


def _cached_kernels(module: Path) -> list[Path]:
    return [
        path
        for path in (module.parent / "__pycache__").glob(f"{module.stem}.*")
        if path.suffix in (".nbi", ".nbc")
    ]


def _move_kernels(module: Path, aside: Path, *, back: bool = False) -> None:
    folder = aside / str(module).strip("/").replace("/", "_")
    if back:
        for path in folder.iterdir() if folder.exists() else ():
            shutil.move(path, module.parent / "__pycache__" / path.name)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for path in _cached_kernels(module):
        shutil.move(path, folder / path.name)
