"""All messages, and messages of one version with any values in them: shared by the tests of this folder.

`HEADRACE_WIRE_SEED` and `HEADRACE_WIRE_EXAMPLES` choose other and more of them.
"""

import importlib
import os
import pkgutil
import random
from uuid import UUID

import pytest

from headrace.protocol import messages
from headrace.protocol.schema import ApiMessage, Field, Message, Struct

for module in pkgutil.iter_modules(messages.__path__):
    importlib.import_module(f"headrace.protocol.messages.{module.name}")


SEED = int(os.environ.get("HEADRACE_WIRE_SEED", "1"))
EXAMPLES = int(os.environ.get("HEADRACE_WIRE_EXAMPLES", "6"))


def _declared(base: type[Message]) -> list[type[Message]]:
    found = [
        kind for kind in base.__subclasses__() if kind.__module__.startswith("headrace.protocol.messages.")
    ]
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
LETTERS = "aZ09 .-_/\0\x7f\x80éßĀ中\uffff𝄞"
TEXTS = ["", "orders", "é", "𝄞", "x" * 127, "x" * 128, "y" * 300]
BYTES = [b"", b"z" * 126, b"z" * 127, b"z" * 20_000]
UUIDS = [UUID(int=0), UUID(int=1), UUID(int=2**128 - 1), UUID(int=0xABCD << 64)]
FLOATS = [0.0, -0.0, 1.0, -1.5, 1e-308, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf")]


def chosen(kind: type[Struct], version: int, chance: random.Random) -> Struct:
    """A struct whose fields hold legal values, often those at an end of what is legal."""
    return kind(**{name: _any(field, version, chance) for name, field in carried(kind, version)})


def _any(field: Field, version: int, chance: random.Random) -> object:
    may_be_absent = version in field.nullable or (field.kind == "struct" and field.is_tagged(version))
    if may_be_absent and chance.random() < 0.25:
        return None
    if field.kind == "struct":
        return chosen(field.structure, version, chance)
    if field.kind == "array":
        return [_any(field.element, version, chance) for _ in range(chance.randrange(4))]
    if field.kind == "string":
        few = "".join(chance.choices(LETTERS, k=chance.randrange(9)))
        return chance.choice((few, chance.choice(TEXTS)))
    if field.kind in ("binary", "records"):
        return chance.choice((chance.randbytes(chance.randrange(7)), chance.choice(BYTES)))
    if field.kind == "boolean":
        return chance.random() < 0.5
    if field.kind == "uuid":
        return chance.choice(UUIDS)
    if field.kind == "float64":
        return chance.choice((chance.choice(FLOATS), chance.uniform(-1e9, 1e9)))
    if field.kind.startswith("uint"):
        low, high, usual = 0, 2 ** int(field.kind[4:]) - 1, 0
    else:
        low, high = -(2 ** (BITS[field.kind] - 1)), 2 ** (BITS[field.kind] - 1) - 1
        usual = field.default
    near = chance.randint(max(low, -200), min(high, 200))  # where varints become longer
    return chance.choice((low, high, usual, near, chance.randint(low, high)))


def with_any_values(pairs: list[tuple[type[ApiMessage], int]]):
    """Turns a test of (message, kind, version) into one per kind: through all its versions, with defaults, with a value
    in every field and with `EXAMPLES` messages of any values.
    """
    versions = {kind: [version for each, version in pairs if each is kind] for kind, _ in pairs}

    def tested(test):
        @pytest.mark.parametrize("kind", versions, ids=name_of)
        def through_versions(kind):
            for version in versions[kind]:
                chance = random.Random(f"{kind.__name__} {version} {SEED}")
                for number in range(-2, EXAMPLES):
                    message = chosen(kind, version, chance) if number >= 0 else kind()
                    if number == -1:
                        message = full(kind, version)
                    try:
                        test(message, kind, version)
                    except BaseException as error:
                        error.add_note(f"version {version}, HEADRACE_WIRE_SEED={SEED}: {message!r}"[:5000])
                        raise

        through_versions.__doc__ = test.__doc__
        return through_versions

    return tested


def full(kind: type[Struct], version: int, elements: int = 2) -> Struct:
    """Return a struct with a value of its own in every field of the version, and `elements` elements in each array."""
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
