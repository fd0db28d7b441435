"""Modules that are loaded when something of them is first used.

numpy and pyarrow are a third of what a server imports, and nothing of them is needed for its first answers: modules
that a start goes through bind them by `lazy_module`, and name them for the type checker as ever. What is used is looked
up once; who imports a module in earnest, in any thread, gets the same one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
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


def lazy_names(package: str, homes: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """The `__getattr__` (PEP 562) of a package whose names are in other modules: each module is imported when the first
    of its names is asked for. `homes`: names by the module that has them, which may begin with a dot, for one inside
    the package."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
