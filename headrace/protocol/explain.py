"""Find the field of a message that could not be encoded, after the failure, so that encoding stays fast."""

from __future__ import annotations

from struct import error, pack
from typing import Any
from uuid import UUID

from headrace.protocol.fields import FORMATS, Declared, DeclaredMessage, Field

_MISSING = object()


def explain(message: DeclaredMessage, version: int, cause: Exception) -> str:
    """Return the first field whose value does not fit, or `cause` if there is none."""
    string_size_max = 2**31 - 2 if message.is_flexible(version) else 2**15 - 1
    found = _in_struct(message, version, string_size_max, type(message).__name__)
    return found or f"{type(cause).__name__}: {cause}"


def _in_struct(value: Declared, version: int, string_size_max: int, path: str) -> str | None:
    for name, field in value.FIELDS.items():
        if version in field.versions:
            found = _in_value(
                field, getattr(value, name, _MISSING), version, string_size_max, f"{path}.{name}"
            )
            if found is not None:
                return found
    return None


def _in_value(field: Field, value: Any, version: int, string_size_max: int, path: str) -> str | None:
    if value is _MISSING:
        return f"{path} was deleted"
    if value is None:
        absent = version in field.nullable or field.is_tagged(version) or field.kind == "records"
        return None if absent else f"{path} is None, which version {version} does not allow"
    if field.structure is not None:
        if not isinstance(value, field.structure):
            return f"{path} is {_short(value)}, not a {field.structure.__name__}"
        return _in_struct(value, version, string_size_max, path)
    if field.element is not None:
        if not isinstance(value, (list, tuple)):
            return f"{path} is {_short(value)}, not a list"
        for index, item in enumerate(value):
            found = _in_value(field.element, item, version, string_size_max, f"{path}[{index}]")
            if found is not None:
                return found
        return None
    if field.kind == "string" and isinstance(value, str):
        return _in_string(value, string_size_max, path)
    if field.kind != "string" and _fits(field.kind, value):
        return None
    return f"{path} is {_short(value)}, which is not a valid {field.kind}"


def _in_string(value: str, size_max: int, path: str) -> str | None:
    try:
        size = len(value.encode())
    except UnicodeEncodeError as reason:
        return f"{path} is {_short(value)}, which cannot be written as UTF-8: {reason.reason}"
    return f"{path} has {size} bytes, more than the {size_max} that fit" if size > size_max else None


def _fits(kind: str, value: Any) -> bool:
    try:
        if kind == "uuid":
            return isinstance(value, UUID)
        if kind in FORMATS:
            pack(">" + FORMATS[kind][0], value)
        elif kind != "records" or not isinstance(getattr(value, "size", None), int):
            memoryview(value)
    except (error, TypeError, ValueError, OverflowError):
        return False
    return True


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 100 else f"{text[:100]}... ({len(text)} characters)"
