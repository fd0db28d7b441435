"""The supported part of Substrait: its messages, and the extended expression that holds a filter.

pyarrow writes a filter as an `ExtendedExpression`. Names and numbers of messages and fields are those of substrait.io,
proto/substrait/algebra.proto, extended_expression.proto and extensions/extensions.proto. `tree_reader` makes nodes of
the expression.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec

from headrace.tablelayer.model.filters.protobuf import EMPTY, Walk, written


class ExpressionKind(IntEnum):
    """The field of an Expression that is set."""

    LITERAL = 1
    SELECTION = 2
    SCALAR_FUNCTION = 3
    WINDOW_FUNCTION = 5
    IF_THEN = 6
    SWITCH_EXPRESSION = 7
    SINGULAR_OR_LIST = 8
    MULTI_OR_LIST = 9
    ENUM = 10
    CAST = 11
    SUBQUERY = 12


class LiteralKind(IntEnum):
    """The field of an Expression.Literal that holds its value, and two that say more about it."""

    BOOLEAN = 1
    I8 = 2
    I16 = 3
    I32 = 5
    I64 = 7
    FP32 = 10
    FP64 = 11
    STRING = 12
    BINARY = 13
    TIMESTAMP = 14
    DATE = 16
    TIME = 17
    FIXED_CHAR = 21
    FIXED_BINARY = 23
    DECIMAL = 24
    TIMESTAMP_TZ = 27
    NULL = 29
    PRECISION_TIMESTAMP = 34
    PRECISION_TIMESTAMP_TZ = 35
    NULLABLE = 50
    TYPE_VARIATION_REFERENCE = 51


class ExtendedExpression(msgspec.Struct):
    extension_uris: Annotated[list[memoryview], 1] = []
    extensions: Annotated[list[memoryview], 2] = []
    referred_expr: Annotated[list[memoryview], 3] = []
    base_schema: Annotated[memoryview, 4] = EMPTY


class ExtensionUri(msgspec.Struct):
    """A list of functions. A declaration names it by its anchor."""

    anchor: Annotated[int, 1] = 0
    uri: Annotated[str, 2] = ""


class ExtensionDeclaration(msgspec.Struct):
    """One of the three is set."""

    extension_type: Annotated[memoryview | None, 1] = None
    extension_type_variation: Annotated[memoryview | None, 2] = None
    extension_function: Annotated[memoryview | None, 3] = None


class Extension(msgspec.Struct):
    """The declaration of a function, a type or a variation of a type. A call names it by its anchor."""

    uri_reference: Annotated[int, 1] = 0
    anchor: Annotated[int, 2] = 0
    name: Annotated[str, 3] = ""


class ExpressionReference(msgspec.Struct):
    expressions: Annotated[list[memoryview], 1] = []


class NamedStruct(msgspec.Struct):
    names: Annotated[list[str], 1] = []


class ScalarFunction(msgspec.Struct):
    function_reference: Annotated[int, 1] = 0
    deprecated_args: Annotated[list[memoryview], 2] = []
    arguments: Annotated[list[memoryview], 4] = []
    options: Annotated[list[memoryview], 5] = []


class FunctionArgument(msgspec.Struct):
    value: Annotated[memoryview | None, 3] = None


class FunctionOption(msgspec.Struct):
    name: Annotated[str, 1] = ""
    preference: Annotated[str, 2] = ""


class FieldReference(msgspec.Struct):
    direct_reference: Annotated[memoryview | None, 1] = None


class ReferenceSegment(msgspec.Struct):
    struct_field: Annotated[memoryview | None, 2] = None


class StructField(msgspec.Struct):
    field: Annotated[int, 1] = 0
    child: Annotated[memoryview | None, 2] = None


class SingularOrListField(IntEnum):
    """An IN: a value and its options, which `literals.scan_options` reads."""

    VALUE = 1
    OPTIONS = 2


class IfThen(msgspec.Struct):
    ifs: Annotated[list[memoryview], 1] = []
    otherwise: Annotated[memoryview | None, 2] = None


class IfClause(msgspec.Struct):
    condition: Annotated[memoryview, 1] = EMPTY
    then: Annotated[memoryview, 2] = EMPTY


class Decimal(msgspec.Struct):
    value: Annotated[memoryview, 1] = EMPTY
    precision: Annotated[int, 2] = 0
    scale: Annotated[int, 3] = 0


class PrecisionTimestamp(msgspec.Struct):
    precision: Annotated[int, 1] = 0
    value: Annotated[int, 2] = 0


class Parsed(msgspec.Struct, frozen=True):
    """An extended expression. `names`: those of the schema of the expression."""

    names: tuple[str, ...]
    root: memoryview
    functions: dict[int, str]
    walk: Walk


def parse(data: bytes) -> Parsed:
    """Read an extended expression that holds one expression. Raises ValueError."""
    walk = Walk()
    whole = walk.read(ExtendedExpression, memoryview(data))
    functions: dict[int, str] = {}
    for declaration in whole.extensions:
        declared = walk.read(ExtensionDeclaration, declaration).extension_function
        if declared is not None:
            function = walk.read(Extension, declared)
            functions[function.anchor] = function.name.partition(":")[0]
    roots = [
        root for each in whole.referred_expr for root in walk.read(ExpressionReference, each).expressions
    ]
    if len(roots) != 1:
        raise ValueError(f"{len(roots)} expressions; one is expected")
    return Parsed(tuple(walk.read(NamedStruct, whole.base_schema).names), roots[0], functions, walk)


def compact(data: bytes) -> bytes:
    """Return the parts of an extended expression that `parse` reads, with each of its function lists named once.

    For every call pyarrow names a list again, and once more for every call around it, which makes 120 MB of a
    thousand comparisons.
    """
    walk = Walk(len(data))
    whole = walk.read(ExtendedExpression, memoryview(data))
    first, renumbered = dict[str, int](), dict[int, int]()
    lists = list[memoryview]()
    for each in whole.extension_uris:
        named = walk.read(ExtensionUri, each)
        if named.uri not in first:
            first[named.uri] = named.anchor
            lists.append(each)
        renumbered[named.anchor] = first[named.uri]
    whole.extension_uris = lists
    whole.extensions = [_renumbered(each, renumbered, walk) for each in whole.extensions]
    return bytes(written(whole))


def _renumbered(declaration: memoryview, lists: dict[int, int], walk: Walk) -> memoryview:
    """Return a declaration with the new number of its list."""
    declared = walk.read(ExtensionDeclaration, declaration)
    for name in declared.__struct_fields__:
        part = getattr(declared, name)
        if part is not None:
            extension = walk.read(Extension, part)
            extension.uri_reference = lists.get(extension.uri_reference, 0)
            setattr(declared, name, written(extension))
    return written(declared)
