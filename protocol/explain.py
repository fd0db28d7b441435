"""Says which field of a message could not be encoded, after the fact: encoders do not spend time on it
beforehand.
"""

from __future__ import annotations

from struct import error, pack
from typing import TYPE_CHECKING, Any
from uuid import UUID

from protocol.fields import FORMATS, Field

if TYPE_CHECKING:
    from protocol.schema import Struct


def explain(message: Struct, version: int, cause: Exception) -> str:
    """One sentence that names the first field whose value does not fit, or tells `cause` when none is
    found.
    """
    return _in_struct(message, version, type(message).__name__) or f"{type(cause).__name__}: {cause}"


def _in_struct(value: Any, version: int, path: str) -> str | None:
    for name, field in value.FIELDS.items():
        if version in field.versions:
            found = _in_value(field, getattr(value, name, _MISSING), version, f"{path}.{name}")
            if found is not None:
                return found
    return None


_MISSING = object()


def _in_value(field: Field, value: Any, version: int, path: str) -> str | None:
    if value is _MISSING:
        return f"{path} was never set"
    if value is None:
        return None
    if field.kind == "struct":
        if not isinstance(value, field.structure):  # type: ignore[arg-type]
            return f"{path} is {value!r}, not {field.structure.__name__}"  # type: ignore[union-attr]
        return _in_struct(value, version, path)
    if field.kind == "array":
        if not isinstance(value, (list, tuple)):
            return f"{path} is {value!r}, not a list"
        for index, item in enumerate(value):
            found = _in_value(field.element, item, version, f"{path}[{index}]")  # type: ignore[arg-type]
            if found is not None:
                return found
            if item is None:
                return f"{path}[{index}] is None"
        return None
    return (
        None if _fits(field.kind, value) else f"{path} is {_short(value)}, which is not a valid {field.kind}"
    )


def _fits(kind: str, value: Any) -> bool:
    try:
        if kind == "string":
            return isinstance(value, str) and len(value.encode()) <= 0x7FFF
        if kind == "uuid":
            return isinstance(value, UUID)
        if kind == "binary":
            return len(memoryview(value)) >= 0
        if kind == "records":
            return isinstance(getattr(value, "size", 0), int)
        pack(">" + FORMATS[kind][0], value)
    except (error, TypeError, ValueError, OverflowError):
        return False
    return True


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 100 else f"{text[:100]}... ({len(text)} characters)"
