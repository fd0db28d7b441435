"""All messages, and hypothesis strategies for messages of one version: shared by the tests of this folder."""

import functools
import importlib
import pkgutil
from uuid import UUID

import pytest
from hypothesis import strategies as st

import protocol.messages
from protocol.schema import ApiMessage, Field, Message, Struct

for module in pkgutil.iter_modules(protocol.messages.__path__):
    importlib.import_module(f"protocol.messages.{module.name}")


def _declared(base: type[Message]) -> list[type[Message]]:
    found = [kind for kind in base.__subclasses__() if kind.__module__.startswith("protocol.messages.")]
    return sorted(found, key=lambda kind: (kind.__module__, kind.__name__))


API_MESSAGES = _declared(ApiMessage)
MESSAGES = API_MESSAGES + [kind for kind in _declared(Message) if kind is not ApiMessage]
PAIRS = [(kind, version) for kind in MESSAGES for version in range(kind.MIN_VERSION, kind.MAX_VERSION + 1)]
API_PAIRS = [(kind, version) for kind, version in PAIRS if issubclass(kind, ApiMessage)]


def carried(kind: type[Struct], version: int) -> list[tuple[str, Field]]:
    """The fields that a version carries, in the order of Kafka's definition."""
    return [(name, field) for name, field in kind.FIELDS.items() if version in field.versions]


def name_of(value: object) -> str | None:
    """The test id of a parameter."""
    return value.__name__ if isinstance(value, type) else f"v{value}" if isinstance(value, int) else None


def in_every_version(test):
    """Turns a test of (kind, version) into one per message that goes through all its versions."""

    @pytest.mark.parametrize("kind", MESSAGES, ids=name_of)
    def through_versions(kind):
        for version in range(kind.MIN_VERSION, kind.MAX_VERSION + 1):
            try:
                test(kind, version)
            except BaseException as error:
                error.add_note(f"in version {version}")
                raise

    through_versions.__doc__ = test.__doc__
    return through_versions


BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8) | st.sampled_from(
    ["", "orders", "é", "𝄞", "x" * 127, "x" * 128, "y" * 300]
)
BYTES = st.binary(max_size=6) | st.sampled_from([b"", b"z" * 126, b"z" * 127, b"z" * 20_000])


def values(field: Field, version: int) -> st.SearchStrategy:
    """Legal values of a field in a version that carries it."""
    if field.kind == "struct":
        given = structs(field.structure, version)
        return st.none() | given if version in field.nullable or field.is_tagged(version) else given
    if field.kind == "array":
        given = st.lists(values(field.element, version), max_size=3)
    elif field.kind == "string":
        given = TEXT
    elif field.kind in ("binary", "records"):
        given = BYTES
    elif field.kind == "boolean":
        given = st.booleans()
    elif field.kind == "uuid":
        given = st.sampled_from([UUID(int=0), UUID(int=1), UUID(int=2**128 - 1), UUID(int=0xABCD << 64)])
    elif field.kind.startswith("uint"):
        given = st.integers(0, 2 ** int(field.kind[4:]) - 1)
    elif field.kind == "float64":
        given = st.floats(allow_nan=False)
    else:
        bits = BITS[field.kind]
        given = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) | st.just(field.default)
    return st.none() | given if version in field.nullable else given


@functools.cache
def structs(kind: type[Struct], version: int) -> st.SearchStrategy:
    """Structs whose fields hold legal values, and defaults where the version does not carry the field."""
    return st.builds(
        kind,
        **{name: values(field, version) for name, field in kind.FIELDS.items() if version in field.versions},
    )


def full(kind: type[Struct], version: int, elements: int = 2) -> Struct:
    """A struct in which every field of the version has a value of its own, and so many elements per array."""
    return kind(
        **{
            name: _some(field, version, position, elements)
            for position, (name, field) in enumerate(carried(kind, version), start=1)
        }
    )


def _some(field: Field, version: int, seed: int, elements: int) -> object:
    if field.kind == "struct":
        return full(field.structure, version, elements)
    if field.kind == "array":
        return [_some(field.element, version, seed + index, elements) for index in range(elements)]
    return {
        "string": f"text-{seed}",
        "binary": bytes([seed]) * seed,
        "records": b"records" * seed,
        "boolean": not field.default,
        "uuid": UUID(int=seed),
        "float64": seed / 8,
    }.get(field.kind, seed + 1)
