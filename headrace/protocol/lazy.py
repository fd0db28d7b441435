"""Modules that are loaded when something of them is first used.

numpy and pyarrow are a third of what a server imports, and nothing of them is needed for its first answers: modules
that a start goes through bind them by `lazy_module`, and name them for the type checker as ever. What is used is looked
up once; who imports a module in earnest, in any thread, gets the same one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any


class _LazyModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)
        return value


def lazy_module(name: str) -> Any:
    """Stands for the module `name`. Not for kernels: numba knows modules alone."""
    return _LazyModule(name)


def lazy_names(module: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__` and `__dir__` (PEP 562) and `__all__` of a module that imports its names at their first use.

    The stub (`.pyi`) beside `file` lists the names for type checkers, and is the only list: `from home import Name as
    Name`, each from the module that has it.
    """
    stub = Path(file).with_suffix(".pyi")
    home_of = {
        name.name: resolve_name("." * node.level + (node.module or ""), module.rpartition(".")[0] or module)
        for node in ast.parse(stub.read_bytes()).body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *home_of})

    return find, names, sorted(home_of)
