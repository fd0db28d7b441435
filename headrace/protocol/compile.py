"""Turns declarations into Python functions: what the three compilers share.

Source text is generated and executed once per (message, version). Values other than small literals are
handed over in the function's namespace under generated names. The source is registered with `linecache`, so
tracebacks and profilers show it.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from headrace.protocol.fields import FORMATS, STRUCT_DEFAULT, Declared, Field


class Source:
    """The text of one function under construction, and the namespace that it will run in."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0
        self.namespace: dict[str, Any] = {}
        self._names = 0
        self._constants: dict[tuple[type, Any], str] = {}

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Write the head of a block, such as `else:`, and indent the lines that are written inside of `with`."""
        self.line(head)
        self.depth += 1
        yield
        self.depth -= 1

    def fresh(self, prefix: str) -> str:
        """A name that is not used yet."""
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, value: Any, prefix: str) -> str:
        """The name under which the function finds `value`, which must be hashable."""
        key = (type(value), value)
        name = self._constants.get(key)
        if name is None:
            name = self._constants[key] = self.fresh(prefix)
            self.namespace[name] = value
        return name

    def default(self, field: Field) -> str:
        """An expression for the field's default: a new object where that is mutable."""
        if field.default is STRUCT_DEFAULT:
            assert field.structure is not None
            return f"{self.constant(field.structure, 'C')}()"
        if isinstance(field.default, UUID):
            return self.constant(field.default, "D")
        return repr(field.default)

    def function(self, name: str, title: str) -> Any:
        """Execute the text, which defines `name`; `title` is what tracebacks call it."""
        text = "\n".join(self.lines) + "\n"
        filename = f"<{title}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        exec(compile(text, filename, "exec"), self.namespace)
        return self.namespace[name]


def minimum_size(field: Field, version: int, flexible: bool) -> int:
    """The least number of bytes that `field` takes in an encoding of `version`; it must not be a tagged
    field there.
    """
    if field.kind in FORMATS:
        return FORMATS[field.kind][1]
    if field.kind == "struct":
        assert field.structure is not None
        return 1 if version in field.nullable else struct_minimum_size(field.structure, version, flexible)
    if flexible:
        return 1
    return 2 if field.kind == "string" else 4


def struct_minimum_size(structure: type[Declared], version: int, flexible: bool) -> int:
    """The least number of bytes that the struct takes in an encoding of `version`."""
    return int(flexible) + sum(
        minimum_size(field, version, flexible)
        for field in structure.FIELDS.values()
        if version in field.versions and not field.is_tagged(version)
    )


_VALUE_COST = {"int8": 0, "boolean": 0, "uuid": 120, "string": 56, "binary": 40, "records": 256, "array": 64}


def value_cost(field: Field, version: int) -> int:
    """Bytes of memory that a value of the field takes besides its slot: without the elements, characters
    and bytes in it.
    """
    if field.kind == "struct":
        assert field.structure is not None
        return struct_cost(field.structure, version)
    return _VALUE_COST.get(field.kind, 32)


def _default_cost(field: Field, version: int) -> int:
    """The same of the value that a field has when its version does not carry it, or no tag does."""
    if field.default is STRUCT_DEFAULT:
        assert field.structure is not None
        return struct_cost(field.structure, version)
    return _VALUE_COST["array"] if field.default == [] else 0


def struct_cost(structure: type[Declared], version: int) -> int:
    """Bytes of memory that an object takes once it is decoded, without what its strings, arrays and the
    like contain. A tagged field counts as absent: what it takes is charged when it is there.
    """
    return 32 + sum(
        8
        + (
            value_cost(field, version)
            if version in field.versions and not field.is_tagged(version)
            else _default_cost(field, version)
        )
        for field in structure.FIELDS.values()
    )


class _Unset:
    def __repr__(self) -> str:
        return "..."


_UNSET = _Unset()


def compile_constructor(cls: type[Declared]) -> Callable[..., None]:
    """The `__init__` of a declared struct: keyword-only, each field with its default."""
    source = Source()
    source.namespace["UNSET"] = _UNSET
    parameters = ["self"] + (["*"] if cls.FIELDS else [])
    body = []
    for name, field in cls.FIELDS.items():
        default = source.default(field)
        if field.default is STRUCT_DEFAULT or isinstance(field.default, list):
            parameters.append(f"{name}=UNSET")
            body.append(f"self.{name} = {default} if {name} is UNSET else {name}")
        else:
            parameters.append(f"{name}={default}")
            body.append(f"self.{name} = {name}")
    source.line(f"def __init__({', '.join(parameters)}):")
    source.depth += 1
    for text in body or ["pass"]:
        source.line(text)
    return source.function("__init__", f"constructor of {cls.__name__}")  # type: ignore[no-any-return]
