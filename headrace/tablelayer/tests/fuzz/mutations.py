"""Requests with a fault: in a field, in JSON, an Arrow batch, a filter or records inside a field, or in the bytes of
the frame.

`mutated` takes an honest request and changes one to three things of it. The same generator state makes the same one.
"""

from __future__ import annotations

import copy
import json
import random
import struct
from typing import Any
from uuid import UUID

import numpy as np

from headrace.protocol.errors import DecodeError
from headrace.protocol.records.decode import decode_records
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import LOG_OVERHEAD, write_crc
from headrace.protocol.schema import ApiMessage, Field, Struct
from headrace.tablelayer.model.batches.batch import ArrowBatch
from headrace.tablelayer.model.options.table_options import DECLARED
from headrace.tablelayer.tests.fuzz.world import World
from headrace.tablelayer.tests.model import ipc_mutations

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEXTS = (
    "", " ", "\0", "a\nb", "a\r\nERROR forged line", "\x1b[31m", "\u2028", "é", "\U0010ffff", "a" * 200, "a" * 250,
    "a" * 70_000, "default", "default.keyed", "keyed", "parted", "parted.a", "a.b", "a.b.c", "..", "/", "../../x",
    "__x", "fuzz0", "fuzz0.a", "0", "-1", "NaN", "Infinity", "true", "null", "2024", "2024-01-01", "%s%d%n", "{}",
    "$.a", "`", "'", "plain", "id", "s", "*", "id,s", "id,id", "1 d", "999999999999999 d", "-1 d", "1e400", "9" * 400,
    "ZSTD", "none",
)  # fmt: skip
TYPES = (
    "INT", "BIGINT", "STRING", "DECIMAL(38, 38)", "DECIMAL(99999999999, 1)", "CHAR(2147483647)", "BINARY(2147483648)",
    "CHAR(0)", "TIMESTAMP(9)", "TIMESTAMP(10)", "TIME(9)", "ARRAY<INT>", "MAP<STRING, INT>", "ROW<a INT>",
    "ROW<a INT, a INT>", "ROW<>", "ARRAY<" * 40 + "INT" + ">" * 40, "ARRAY<" * 20_000,
    "ROW<a " * 500 + "INT" + ">" * 500,
    "ROW<" + ", ".join(f"f{n} INT" for n in range(3000)) + ">", "MAP<MAP<INT, INT>, INT>", "INT NOT NULL", "int(",
    "BOOLEAN", "DOUBLE", "FLOAT", "DATE", "TIMESTAMP_LTZ(6)", "BYTES", "VARCHAR(3)", "INT;", "",
)  # fmt: skip
RAW = "@raw:"
DEEP = ("[" * 100_000, "[" * 3000 + "]" * 3000, '{"a":' * 3000 + "1" + "}" * 3000)
NUMBERS = (
    0, 1, -1, 2, 127, 128, -129, 32767, 32768, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1,
    10**400, 0.5, -0.0, 1e308, 5e-324, float("inf"), float("-inf"), float("nan"), 4096, 4097, 1000, 1001,
)  # fmt: skip
DDL_WORDS = (
    "PRIMARY KEY (id) NOT ENFORCED", "NOT NULL", "COMMENT 'x'", "DEFAULT 1", "DEFAULT 'x'", "DEFAULT (", "(", ")", ",",
    "<", ">", "`", "'", "--", "/*", "a INT", "id INT", "WATERMARK FOR a AS a", "AS (1)", "METADATA", "\0", "9" * 50,
    *TYPES,
)  # fmt: skip
FUNCTIONS = (
    b"binary_repeat",
    b"equal",
    b"and_kleene",
    b"is_in",
    b"utf8_upper",
    b"replace_substring_regex",
    b"random",
)
VARINTS = (
    b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x80\x00", b"\x80\x80\x04", b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff", b"\x00", b"\x01", b"\x02",
)  # fmt: skip


ARRAY_BYTES_MAX = 32 << 20
"""Nested arrays of thousands would take gigabytes; servers refuse those unread."""


class Chance:
    """Two generators of one seed: Python's for choices among objects, numpy's for functions that take arrays."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numpy = np.random.default_rng(seed)


def mutated(world: World, request: ApiMessage, version: int, chance: Chance) -> list[str]:
    """Change the request in place; return the names of the changes."""
    done = []
    for _ in range(chance.random.choice((1, 1, 1, 2, 3))):
        places = list(_places(request, version))
        if not places:
            break
        # A text or batch inside of which there is much to change is chosen as often as all numbers together.
        rich = [each for each in places if _is_rich(each)]
        owner, name, field = chance.random.choice(rich if rich and chance.random.random() < 0.45 else places)
        before = getattr(owner, name)
        setattr(owner, name, _changed(world, name, field, version, before, chance))
        done.append(f"{type(owner).__name__}.{name}")
    return done


def _is_rich(place: tuple[Struct, str, Field]) -> bool:
    owner, name, field = place
    return getattr(owner, name) is not None and (
        field.kind in ("records", "binary") or name in ("definition", "changes", "configs")
    )


def _places(struct_: Struct, version: int) -> Any:
    """Yield (the struct, the name of a field, its declaration) of all fields that are sent."""
    for name, field in type(struct_).FIELDS.items():
        if version not in field.versions:
            continue
        yield struct_, name, field
        value = getattr(struct_, name)
        if field.kind == "struct" and value is not None:
            yield from _places(value, version)
        if field.kind == "array" and value and field.element is not None and field.element.kind == "struct":
            for each in value[:20]:
                yield from _places(each, version)


def _changed(world: World, name: str, field: Field, version: int, value: Any, chance: Chance) -> Any:
    rng = chance.random
    if version in field.nullable and rng.random() < 0.1:
        return None
    match field.kind:
        case "boolean":
            return not value
        case "uuid":
            return rng.choice([*world.ids(), UUID(int=rng.getrandbits(128))])
        case "string":
            return _text(name, value, chance)
        case "array":
            return _array(world, name, field, version, list(value or []), chance)
        case "binary":
            return _bytes(value, chance)
        case "records":
            return _records(world, value, chance)
        case "struct":
            return value
    return _number(world, name, field.kind, value, chance)


def _number(world: World, name: str, kind: str, value: Any, chance: Chance) -> Any:
    if kind not in BITS:
        return value
    rng, bits = chance.random, BITS[kind]
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    known = [*world.scans[-3:], *world.epochs[-3:]]
    edges = [
        least,
        least + 1,
        -2,
        -1,
        0,
        1,
        2,
        3,
        7,
        100,
        1000,
        1 << 20,
        1 << 40,
        most - 1,
        most,
        value - 1,
        value + 1,
        *known,
    ]
    return max(least, min(rng.choice(edges), most))


def _text(name: str, value: str | None, chance: Chance) -> str:
    rng = chance.random
    if name in ("definition", "changes") and value:
        # Half a surrogate pair cannot be encoded in a text; escaped in JSON it can.
        return mutated_json(value, chance).encode("utf-8", "backslashreplace").decode()
    if name == "value" and value is not None and rng.random() < 0.7:
        return (
            mutated_ddl(value, chance)
            if " " in value
            else rng.choice([*TEXTS, value + value, value[:-1], value.upper()])
        )
    if name == "name" and rng.random() < 0.3:
        return rng.choice(sorted(DECLARED))
    return rng.choice(TEXTS)


def _array(
    world: World, name: str, field: Field, version: int, value: list[Any], chance: Chance
) -> list[Any]:
    rng = chance.random
    inner = field.element
    assert inner is not None
    how = rng.randrange(6)
    if how == 0 or not value:
        if inner.kind == "struct" or how < 3:
            return []
        return [
            _changed(world, name, inner, version, _zero(inner), chance)
            for _ in range(rng.choice((1, 3, 1000)))
        ]
    if how == 1:
        heavy = _carries_records(inner)
        times = rng.choice((2, 3, 20) if heavy or len(value) > 3 else (2, 3, 50, 2000))
        return value * min(times, max(1, ARRAY_BYTES_MAX // _size(value)))
    if how == 2:
        return value[::-1]
    if how == 3:
        return value[: rng.randrange(len(value))]
    at = rng.randrange(len(value))
    if inner.kind == "struct":
        again = copy.deepcopy(value[at])
        for owner, field_name, each in [rng.choice(list(_places(again, version)))]:
            setattr(
                owner,
                field_name,
                _changed(world, field_name, each, version, getattr(owner, field_name), chance),
            )
        return [*value, again]
    value[at] = _changed(world, name, inner, version, value[at], chance)
    return value


def _carries_records(field: Field | None) -> bool:
    if field is None:
        return False
    inner = [] if field.structure is None else field.structure.FIELDS.values()
    return field.kind == "records" or _carries_records(field.element) or any(map(_carries_records, inner))


def _size(value: Any) -> int:
    """Bytes that it takes on the wire, about; at least one."""
    match value:
        case list():
            return 1 + sum(map(_size, value))
        case Struct():
            return 1 + sum(_size(getattr(value, name)) for name in type(value).FIELDS)
        case str() | bytes() | bytearray() | memoryview():
            return 1 + len(value)
    return 4


def _zero(field: Field) -> Any:
    return {"string": "", "uuid": UUID(int=0), "boolean": False}.get(field.kind, 0)


# -- JSON and DDL -----------------------------------------------------------------------------------------------


def _odd(chance: Chance) -> Any:
    rng = chance.random
    how = rng.randrange(8)
    if how == 0:
        return rng.choice((None, True, False, [], {}, [[]], {"": ""}, [None] * 2000))
    if how < 3:
        return rng.choice(NUMBERS)
    if how < 5:
        return rng.choice((*TEXTS, "\ud800", "a\udfff", "\x7f"))
    if how < 7:
        return rng.choice(TYPES)
    return RAW + rng.choice(
        (*DEEP, "1e999", "-", "01", '"\\u12"', '"\x01"', "nul", "Infinity", '{"a":1,"a":2}')
    )


def _nodes(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.append((value, key))
        _nodes(inner, found)
    return found


def mutated_json(text: str, chance: Chance) -> str:
    """The text with a node exchanged, dropped, doubled, renamed or added; or cut, or with a character changed."""
    rng = chance.random
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return rng.choice(TEXTS)
    if rng.random() < 0.1:
        at = rng.randrange(len(text) + 1)
        return rng.choice(
            (
                text[:at],
                text[:at] + rng.choice('"{}[],:\\\0') + text[at:],
                text[:at] + text[at + 1 :],
                text * 2,
            )
        )
    nodes = _nodes(value, [])
    if not nodes or rng.random() < 0.03:
        value = _odd(chance)
    else:
        container, key = rng.choice(nodes)
        how = rng.randrange(10)
        if how < 5:
            container[key] = _odd(chance)
        elif how == 5:
            del container[key]
        elif how == 6 and isinstance(container, dict):
            container[str(rng.choice(TEXTS))] = container.pop(key)
        elif how == 7 and isinstance(container, list):
            container.extend(copy.deepcopy(container[key]) for _ in range(rng.choice((1, 1200))))
        elif how == 8 and isinstance(value, dict) and isinstance(value.get("options"), dict):
            value["options"][rng.choice([*sorted(DECLARED), *TEXTS])] = str(
                rng.choice([*TEXTS, *map(str, NUMBERS)])
            )
        else:
            other, at = rng.choice(nodes)
            try:
                container[key] = copy.deepcopy(other[at])
            except (KeyError, IndexError):
                container[key] = None
    out = json.dumps(value, ensure_ascii=rng.random() < 0.5, separators=(",", ":"))
    while (start := out.find(f'"{RAW}')) >= 0:  # what stands for itself
        raw, end = json.JSONDecoder().raw_decode(out, start)
        out = out[:start] + raw.removeprefix(RAW) + out[end:]
    return out


def mutated_ddl(text: str, chance: Chance) -> str:
    rng = chance.random
    words = text.split(" ")
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(words))
        how = rng.randrange(5)
        if how == 0:
            words[at] = rng.choice(DDL_WORDS)
        elif how == 1:
            words.insert(at, rng.choice(DDL_WORDS))
        elif how == 2 and len(words) > 1:
            del words[at]
        elif how == 3:
            words[at:at] = words[: rng.choice((3, 20))] * rng.choice((1, 300))
        else:
            words[at] += rng.choice(TEXTS)
        words = words or [""]
    return " ".join(words)


# -- bytes ------------------------------------------------------------------------------------------------------


def damaged(data: bytes, chance: Chance) -> bytes:
    """Bits flipped, parts cut, doubled, put in, numbers made wild."""
    rng = chance.random
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        where = rng.randrange(len(result) + 1)
        how = rng.randrange(7)
        if how == 0 and where < len(result):
            result[where] ^= 1 << rng.randrange(8)
        elif how == 1:
            piece = rng.choice(VARINTS)
            result[where : where + len(piece)] = piece
        elif how == 2:
            del result[where:]
        elif how == 3:
            del result[where : where + rng.randrange(1, 9)]
        elif how == 4:
            result[where:where] = result[where : where + rng.randrange(1, 40)]
        elif how == 5 and where < len(result):
            result[where] = (result[where] + rng.choice((1, 255))) & 255
        else:
            result[where:where] = rng.choice(VARINTS)
    return bytes(result)


def damaged_frame(frame: bytes, chance: Chance) -> bytes:
    """Damage a frame, but not its API key, so that it reaches its decoder."""
    return frame[:8] + damaged(frame[8:], chance)


def _bytes(value: bytes | None, chance: Chance) -> bytes:
    """A filter, or a cursor."""
    rng = chance.random
    if not value or rng.random() < 0.1:
        return rng.choice((b"", b"\0", b"\xff" * 9, bytes(100_000), rng.randbytes(50)))
    if rng.random() < 0.25:
        present = [each for each in FUNCTIONS if each in value]
        if present:
            return value.replace(rng.choice(present), rng.choice(FUNCTIONS))
    if rng.random() < 0.1:
        return value * rng.choice((2, 100))
    return damaged(value, chance)


def _records(world: World, value: Any, chance: Chance) -> bytes | None:
    """An Arrow batch, an Arrow message of keys, or a batch of Kafka's."""
    rng = chance.random
    data = bytes(value or b"")
    if not data or rng.random() < 0.05:
        return rng.choice((b"", None, bytes(61), bytes(77), rng.randbytes(200)))
    if rng.random() < 0.05:  # of another table
        table = world.with_rows(chance.numpy)
        return rng.choice(
            (table.batch(chance.numpy), table.keys(chance.numpy, tuple(table.definition.schema.names)))
        )
    if rng.random() < 0.04:
        return data * 2
    if len(data) > 61 and data[16] == 100:
        return _arrow_batch(data, chance)
    if len(data) > 61 and data[16] == 2:
        return _kafka_batch(data, chance)
    try:
        return ipc_mutations.mutated(data, chance.numpy)[1]
    except (DecodeError, ValueError, struct.error, IndexError):
        return damaged(data, chance)


_FIELDS = (
    (8, "i"),
    (12, "i"),
    (21, "h"),
    (23, "i"),
    (27, "q"),
    (35, "q"),
    (43, "q"),
    (51, "h"),
    (53, "i"),
    (57, "i"),
)
_ARROW_FIELDS = ((61, "i"), (65, "h"), (67, "b"), (68, "b"), (69, "i"), (73, "i"))
_WIDTH = {"b": 8, "h": 16, "i": 32, "q": 64}


def _header_field(data: bytes, fields: tuple[tuple[int, str], ...], chance: Chance) -> bytes:
    rng = chance.random
    position, form = rng.choice(fields)
    bits = _WIDTH[form]
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    result = bytearray(data)
    (before,) = struct.unpack_from(f">{form}", result, position)
    edges = [least, -2, -1, 0, 1, 2, 3, 4, 8, 16, 32, 64, most, before + 1, before - 1]
    struct.pack_into(f">{form}", result, position, max(least, min(rng.choice(edges), most)))
    return _with_crc(result, chance)


def _with_crc(batch: bytearray, chance: Chance) -> bytes:
    if chance.random.random() < 0.9 and struct.unpack_from(">i", batch, 8)[0] + LOG_OVERHEAD == len(batch):
        write_crc(batch)
    return bytes(batch)


def _arrow_batch(data: bytes, chance: Chance) -> bytes:
    rng = chance.random
    how = rng.random()
    try:
        if how < 0.65:
            message = ArrowBatch.parse(data).message
            return ipc_mutations.framed(data, ipc_mutations.mutated(message, chance.numpy)[1])
        if how < 0.9:
            return _header_field(data, _FIELDS + _ARROW_FIELDS, chance)
    except (DecodeError, ValueError, struct.error, IndexError):
        pass
    result = bytearray(damaged(data, chance))
    return _with_crc(result, chance) if len(result) > 61 else bytes(result)


def _kafka_batch(data: bytes, chance: Chance) -> bytes:
    rng = chance.random
    how = rng.random()
    if how < 0.2:
        return _header_field(data, _FIELDS, chance)
    if how < 0.3:
        result = bytearray(damaged(data, chance))
        return _with_crc(result, chance) if len(result) > 61 else bytes(result)
    try:
        columns = decode_records(memoryview(data))
        records = [
            Record(key, value, (), 5) for key, value in zip(columns.keys(), columns.values(), strict=True)
        ]
    except DecodeError:
        return damaged(data, chance)
    if not records:
        return damaged(data, chance)
    at = rng.randrange(len(records))
    value = records[at].value
    records[at] = Record(
        _odd_key(records[at].key, chance) if rng.random() < 0.25 else records[at].key,
        _value(value, chance) if value is not None else rng.choice((b"", b"null", b"{}")),
        () if rng.random() < 0.9 else (("h", b"\0" * 20), ("h", None)),
        rng.choice((5, -1, 0, 2**62)),
    )
    return build_batch(records * rng.choice((1, 1, 1, 40)))


def _odd_key(key: bytes | None, chance: Chance) -> bytes | None:
    return chance.random.choice(
        (
            None,
            b"",
            b"null",
            b"1",
            b'"1"',
            b"[1]",
            b'{"id":1}',
            b'{"id":',
            b"\xff",
            b"1e400",
            b"9" * 5000,
            b"[" * 100_000,
        )
    )


def _value(value: bytes, chance: Chance) -> bytes:
    rng = chance.random
    if value[:4] == b"Obj\x01" or value[:1] == b"\0":
        return damaged(value, chance)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return damaged(value, chance)
    if rng.random() < 0.12:
        return damaged(value, chance)
    if rng.random() < 0.08:  # invalid UTF-8 inside of a text
        at = value.find(b'"')
        return (
            value[: at + 1]
            + rng.choice((b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"))
            + value[at + 1 :]
        )
    return mutated_json(text, chance).encode("utf-8", "surrogatepass")
