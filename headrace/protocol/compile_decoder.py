"""Compiles the decoder of one version of a message: one flat function, loops for arrays, one `unpack_from`
per run of fixed-size fields (lengths of the old encoding among them).

The function takes (buffer, position, left) and returns (message, position, left), where `left` is what remains of the
budget, in bytes. It raises DecodeError for what it checks itself. A buffer that ends too early raises `struct.error`
or IndexError, and text that is not UTF-8 UnicodeDecodeError; the caller translates them.

For large frames there is a second form of it, a generator that yields every few elements, so that other work can run
in between.

This is the decoder of LeaveGroupRequest in version 0, whose fields are the strings `group_id` and `member_id`:

    def decode(buf, pos, left):
        end = len(buf)
        left -= 232
        if left < 0: raise exceeded(232, left + 232)
        m = new(C1)
        m.members = []

        n2, = U4(buf, pos); pos += 2
        if n2 < 0: raise bad_null('LeaveGroupRequest.group_id', n2)

        e3 = pos + n2
        if e3 > end: raise too_long('LeaveGroupRequest.group_id', n2, end - pos)
        s5 = str(buf[pos:e3], 'utf-8')
        left -= n2 if s5.isascii() else 4 * n2
        m.group_id = s5
        pos = e3
        ...

Each allocation is checked first. A number of elements that cannot fit into the rest of the buffer at their minimum
size, or into the budget, is refused. Text and bytes are charged at the next array or at the end, since they cannot be
larger than the buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import lru_cache
from struct import Struct as Packer
from struct import unpack_from
from typing import Any
from uuid import UUID

from headrace.protocol.budget import exceeded
from headrace.protocol.compile import Source, minimum_size, struct_cost, struct_minimum_size, value_cost
from headrace.protocol.errors import DecodeError
from headrace.protocol.fields import FORMATS, Declared, DeclaredMessage, Field

Decoder = Callable[[Any, int, int], tuple[Any, int, int]]
SlicedDecoder = Callable[[Any, int, int], Generator[None, None, tuple[Any, int, int]]]

ELEMENTS_PER_SLICE = 32
"""Array elements in one slice of a sliced decoder or encoder."""
STRING_BYTES_MAX = 32_767
"""The same limit as in Kafka, although the compact encoding allows more: one string is not decoded in pieces.

It holds for Kafka's own messages, which may be decoded in slices.
"""
_PRIVATE_KEYS_FROM = 10_000
_LENGTH_OF_STRING = f"a length of a string, of at most {STRING_BYTES_MAX} bytes"


def compile_decoder(cls: type[DeclaredMessage], version: int) -> Decoder:
    """The decoder of `cls` in `version`, which must be one of its versions."""
    decoder: Decoder = _DecoderCompiler(cls, version, in_slices=False).compile()
    return decoder


def compile_sliced_decoder(cls: type[DeclaredMessage], version: int) -> SlicedDecoder:
    """Compile the same as a generator, which yields every few elements and returns the same result."""
    decoder: SlicedDecoder = _DecoderCompiler(cls, version, in_slices=True).compile()
    return decoder


class _DecoderCompiler:
    def __init__(self, cls: type[DeclaredMessage], version: int, *, in_slices: bool) -> None:
        self.cls = cls
        self.version = version
        self.in_slices = in_slices
        api_key = getattr(cls, "API_KEY", _PRIVATE_KEYS_FROM)
        self.bounds_strings = in_slices and cls.is_flexible(version) and api_key < _PRIVATE_KEYS_FROM
        self.flexible = cls.is_flexible(version)
        self.source = Source()
        self.source.namespace.update(
            new=object.__new__,
            unpack_from=unpack_from,
            more=_finish_unsigned_varint,
            make_uuid=_make_uuid,
            view=memoryview,
            too_long=_too_long,
            too_many=_too_many,
            bad_null=_bad_null,
            bad_value=_bad_value,
            bad_tag=_bad_tag,
            bad_end=_bad_end,
            exceeded=exceeded,
        )
        # Fixed-size values that wait to be unpacked in one call, (format letter, size, target), and what
        # there is to do after that.
        self.run: list[tuple[str, int, str]] = []
        self.after_run: list[str] = []

    def compile(self) -> Any:
        source = self.source
        with source.block("def decode(buf, pos, left):"):
            source.line("end = len(buf)")
            self.charge(str(struct_cost(self.cls, self.version)))
            self.structure(self.cls, "m", self.cls.__name__)
            self.flush()
            source.line("if left < 0: raise exceeded(-left, 0)")
            source.line("return m, pos, left")
            if self.in_slices:
                source.line("yield")
        kind = "sliced decoder" if self.in_slices else "decoder"
        return source.function("decode", f"{kind} of {self.cls.__name__} version {self.version}")

    def flush(self) -> None:
        """Unpack the fixed-size values that were collected."""
        if not self.run:
            return
        run, after_run, self.run, self.after_run = self.run, self.after_run, [], []
        line = self.source.line
        size = sum(width for _, width, _ in run)
        if len(run) == 1 and run[0][0] == "B":
            line(f"{run[0][2]} = buf[pos]; pos += 1")
        else:
            unpack = self.source.constant(
                Packer(">" + "".join(letter for letter, _, _ in run)).unpack_from, "U"
            )
            targets = ", ".join(target for _, _, target in run) + ("," if len(run) == 1 else "")
            line(f"{targets} = {unpack}(buf, pos); pos += {size}")
        for text in after_run:
            line(text)

    def charge(self, amount: str) -> None:
        self.source.line(f"left -= {amount}")
        self.source.line(f"if left < 0: raise exceeded({amount}, left + {amount})")

    def structure(self, structure: type[Declared], target: str, path: str) -> None:
        """Decode a struct into a new object named `target`."""
        line = self.source.line
        self.flush()
        line(f"{target} = new({self.source.constant(structure, 'C')})")
        tagged: list[tuple[str, Field]] = []
        for name, field in structure.FIELDS.items():
            if self.version not in field.versions or field.is_tagged(self.version):
                line(f"{target}.{name} = {self.source.default(field)}")
        for name, field in structure.FIELDS.items():
            if self.version not in field.versions:
                continue
            if field.is_tagged(self.version):
                tagged.append((name, field))
            else:
                self.value(field, f"{target}.{name} = {{}}", f"{path}.{name}")
        if self.flexible:
            self.tags(tagged, target, path)

    def value(self, field: Field, assign: str, path: str) -> None:
        """Decode one value. `assign` is a statement with {} in the place of the value."""
        if field.kind in FORMATS:
            self.fixed(field.kind, assign, path)
        elif field.kind == "struct":
            self.nested(field, assign, path)
        elif field.kind == "array":
            self.array(field, assign, path)
        else:
            self.sized(field, assign, path)

    def fixed(self, kind: str, assign: str, path: str) -> None:
        letter, size = FORMATS[kind]
        target = assign.removesuffix(" = {}")
        if kind not in ("boolean", "uuid") and target != assign:
            self.run.append((letter, size, target))
            return
        raw = self.source.fresh("r")
        self.run.append((letter, size, raw))
        if kind == "boolean":
            self.after_run.append(f"if {raw} > 1: raise bad_value({path!r}, {raw}, 'a boolean, 0 or 1')")
            self.after_run.append(assign.format(f"{raw} == 1"))
        elif kind == "uuid":
            self.after_run.append(assign.format(f"make_uuid({raw})"))
        else:
            self.after_run.append(assign.format(raw))

    def varint(self, target: str) -> None:
        self.flush()
        self.source.line(f"{target} = buf[pos]; pos += 1")
        self.source.line(f"if {target} > 127: {target}, pos = more(buf, pos, {target})")

    def length(self, target: str, old_format: str) -> str:
        """Read a length or count into `target`; return the condition under which it stands for null."""
        if self.flexible:
            self.varint(target)
            self.source.line(f"{target} -= 1")
        else:
            self.run.append((old_format, FORMATS["int16" if old_format == "h" else "int32"][1], target))
            self.flush()
        return f"{target} < 0"

    @contextmanager
    def present(self, field: Field, condition: str, count: str, assign: str, path: str) -> Iterator[None]:
        """Write the branch for null; what is written inside of `with` is for a value."""
        source = self.source
        if self.version not in field.nullable:
            source.line(f"if {condition}: raise bad_null({path!r}, {count})")
            yield
            return
        with source.block(f"if {condition}:"):
            source.line(f"if {count} != -1: raise bad_value({path!r}, {count}, 'a length')")
            source.line(assign.format("None"))
        with source.block("else:"):
            yield

    def sized(self, field: Field, assign: str, path: str) -> None:
        """Decode a string, bytes or records."""
        line = self.source.line
        size, stop = self.source.fresh("n"), self.source.fresh("e")
        condition = self.length(size, "h" if field.kind == "string" else "i")
        with self.present(field, condition, size, assign, path):
            line(f"{stop} = pos + {size}")
            line(f"if {stop} > end: raise too_long({path!r}, {size}, end - pos)")
            if field.kind == "string":
                text = self.source.fresh("s")
                if self.bounds_strings:
                    line(
                        f"if {size} > {STRING_BYTES_MAX}: raise bad_value({path!r}, {size}, {_LENGTH_OF_STRING!r})"
                    )
                line(f"{text} = str(buf[pos:{stop}], 'utf-8')")
                # One character beyond Latin-1 makes all of them two or four bytes wide.
                line(f"left -= {size} if {text}.isascii() else 4 * {size}")
                line(assign.format(text))
            elif field.kind == "binary":
                line(f"left -= {size}")
                line(assign.format(f"bytes(buf[pos:{stop}])"))
            else:
                line(assign.format(f"view(buf)[pos:{stop}]"))
            line(f"pos = {stop}")

    def nested(self, field: Field, assign: str, path: str) -> None:
        """Decode a struct in a field of its own."""
        assert field.structure is not None
        line = self.source.line
        target = self.source.fresh("o")
        if self.version in field.nullable:
            marker = self.source.fresh("r")
            self.run.append(("b", 1, marker))
            self.flush()
            line(f"if {marker} == -1:")
            line("    " + assign.format("None"))
            line(f"elif {marker} != 1:")
            line(f"    raise bad_value({path!r}, {marker}, 'the mark of a struct, 1 or -1')")
            with self.source.block("else:"):
                self.into(field.structure, target, assign, path)
        else:
            self.into(field.structure, target, assign, path)

    def into(self, structure: type[Declared], target: str, assign: str, path: str) -> None:
        """Decode a struct into the variable `target`, and assign it."""
        self.structure(structure, target, path)
        self.flush()
        self.source.line(assign.format(target))

    def array(self, field: Field, assign: str, path: str) -> None:
        element = field.element
        assert element is not None
        count = self.source.fresh("n")
        condition = self.length(count, "i")
        with self.present(field, condition, count, assign, path):
            self.elements(element, count, assign, path)

    def elements(self, element: Field, count: str, assign: str, path: str) -> None:
        """Decode `count` elements of an array, and assign the list of them."""
        line = self.source.line
        if element.kind == "struct":
            assert element.structure is not None
            smallest = struct_minimum_size(element.structure, self.version, self.flexible)
            cost = 8 + struct_cost(element.structure, self.version)
        else:
            smallest = minimum_size(element, self.version, self.flexible)
            cost = 8 + value_cost(element, self.version)
        line(f"if {count} * {max(1, smallest)} > end - pos: raise too_many({path!r}, {count}, end - pos)")
        self.charge(f"{count} * {cost}")
        if element.kind in FORMATS and element.kind not in ("boolean", "uuid"):
            letter, size = FORMATS[element.kind]
            short = self.source.constant(tuple(Packer(f">{n}{letter}").unpack_from for n in range(8)), "S")
            long = f"unpack_from(f'>{{{count}}}{letter}', buf, pos)"
            line(assign.format(f"list({short}[{count}](buf, pos) if {count} < 8 else {long})"))
            line(f"pos += {size} * {count}")
        else:
            values, add = self.source.fresh("a"), self.source.fresh("p")
            line(f"{values} = []")
            line(assign.format(values))
            line(f"{add} = {values}.append")
            index = self.source.fresh("k") if self.in_slices else "_"
            with self.source.block(f"for {index} in range({count}):"):
                if self.in_slices:
                    line(f"if not {index} % {ELEMENTS_PER_SLICE}: yield")
                self.value(element, f"{add}({{}})", f"{path}[]")
                self.flush()

    def tags(self, tagged: list[tuple[str, Field]], target: str, path: str) -> None:
        """Decode the tagged fields at the end of a struct: known ones into their attributes, others are skipped."""
        source, line = self.source, self.source.line
        count, last, tag, stop = (source.fresh(prefix) for prefix in ("n", "l", "t", "e"))
        self.flush()
        line("if not buf[pos]: pos += 1")
        with source.block("else:"):
            self.varint(count)
            line(
                f"if 2 * {count} > end - pos: raise too_many({path + ' tagged fields'!r}, {count}, end - pos)"
            )
            line(f"{last} = -1")
            index = source.fresh("k") if self.in_slices else "_"
            with source.block(f"for {index} in range({count}):"):
                if self.in_slices:
                    line(f"if not {index} % {ELEMENTS_PER_SLICE}: yield")
                self.varint(tag)
                line(f"if {tag} <= {last}: raise bad_tag({path!r}, {tag}, {last})")
                line(f"{last} = {tag}")
                self.varint(stop)
                line(
                    f"if {stop} > end - pos: raise too_long(f'{path} tagged field {{{tag}}}', {stop}, end - pos)"
                )
                line(f"{stop} += pos")
                for name, field in tagged:
                    with source.block(f"if {tag} == {field.tag}:"):
                        self.charge(str(value_cost(field, self.version)))
                        self.value(field, f"{target}.{name} = {{}}", f"{path}.{name}")
                        self.flush()
                        line(f"if pos != {stop}: raise bad_end({path + '.' + name!r}, {stop}, pos)")
                        line("continue")
                line(f"pos = {stop}")


def _finish_unsigned_varint(buffer: Any, position: int, value: int) -> tuple[int, int]:
    """Read the rest of a varint whose first byte `value` had the continuation bit; at most four more bytes."""
    value &= 127
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise DecodeError(
        f"the varint that ends at byte {position} needs more than the 32 bits of a length or tag"
    )


@lru_cache(maxsize=4096)
def _make_uuid(raw: bytes) -> UUID:
    # Topic ids repeat often, and building a UUID takes longer than decoding a whole partition.
    return UUID(bytes=raw)


def _too_long(path: str, size: int, rest: int) -> DecodeError:
    return DecodeError(f"{path}: {size} bytes are announced, but only {rest} are left")


def _too_many(path: str, count: int, rest: int) -> DecodeError:
    return DecodeError(
        f"{path}: {count} elements are announced, more than could fit into the {rest} bytes that are left"
    )


def _bad_null(path: str, count: int) -> DecodeError:
    if count == -1:
        return DecodeError(f"{path}: null is not allowed here")
    return _bad_value(path, count, "a length")


def _bad_value(path: str, value: object, meaning: str) -> DecodeError:
    return DecodeError(f"{path}: {value} is not {meaning}")


def _bad_end(path: str, announced: int, end: int) -> DecodeError:
    return DecodeError(f"{path}: the tagged field ends at byte {end}, not at byte {announced} as announced")


def _bad_tag(path: str, tag: int, last: int) -> DecodeError:
    return DecodeError(f"{path}: tagged field {tag} comes after {last}; tags must ascend")
