"""Modules that are loaded when one of their names is first used.

numpy and pyarrow are a third of the import time of a server, and its first answers need neither. Modules that are
imported at start bind them by `lazy_module`, and import them as usual for the type checker. A name is looked up once.
A plain import, in any thread, gives the same module.
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
    """Return a stand-in for the module `name`. Kernels cannot use it: numba knows only real modules."""
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
