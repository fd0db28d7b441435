"""Kernels use no address in memory of their own.

numba frees an array after the last use of its name, and an address is not a use: the rest of the kernel would read and
write what other threads have allocated there since.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import headrace

_ROOT = Path(headrace.__file__).parent
_SOURCES = sorted(
    path
    for path in _ROOT.rglob("*.py")
    if "tests" not in path.relative_to(_ROOT).parts and "@njit" in path.read_text()
)


def addressed_arrays(source: str) -> list[str]:
    """Return the kernels, with the name of an array, that take the address of an array which they have made."""
    found = []
    for kernel in ast.walk(ast.parse(source)):
        if not isinstance(kernel, ast.FunctionDef) or not any(map(_compiles, kernel.decorator_list)):
            continue
        nodes = list(ast.walk(kernel))
        given = {each.arg for each in kernel.args.args}
        # parts of an argument, which its caller keeps
        unpacked = [
            id(part)
            for each in nodes
            if isinstance(each, ast.Assign) and isinstance(each.value, ast.Name) and each.value.id in given
            for target in each.targets
            for part in ast.walk(target)
        ]
        made = {
            each.id
            for each in nodes
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and id(each) not in unpacked
        }
        for each in nodes:
            if isinstance(each, ast.Attribute) and each.attr == "ctypes":
                name = ast.unparse(each.value)
                if name in made or not name.isidentifier():
                    found.append(f"{kernel.name}: {name}")
    return found


def _compiles(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).endswith("njit")


def test_kernels_are_found() -> None:
    assert len(_SOURCES) > 20
    assert addressed_arrays(
        "@njit(cache=True)\ndef f(n):\n    a = np.zeros(n)\n    return a.ctypes.data"
    ) == ["f: a"]
    assert addressed_arrays(
        "@njit\ndef f(given):\n    a, b = given\n    b = g()\n    return a.ctypes, b.ctypes"
    ) == ["f: b"]


@pytest.mark.parametrize("path", _SOURCES, ids=lambda path: str(path.relative_to(_ROOT)))
def test_kernels_take_no_address_of_an_array_of_their_own(path: Path) -> None:
    assert addressed_arrays(path.read_text()) == []
