"""Modules that are loaded when something of them is first used.

numpy and pyarrow are a third of what a server imports, and nothing of them is needed for its first answers: modules
that a start goes through bind them by `lazy_module`, and name them for the type checker as ever. What is used is looked
up once; who imports a module in earnest, in any thread, gets the same one.
"""

from __future__ import annotations

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
