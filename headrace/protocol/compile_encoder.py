"""Compiles the encoder of one version of a message: one flat function, loops for arrays, one `pack` per run
of fixed-size fields (lengths of the old encoding among them).

The function takes the message and returns a list of buffers. Without records that is one; with records what is
between them is one each, and each `records` value stands in the list by reference, whether it is a buffer or a region
of a file. For large messages there is a second form of it, a generator that yields every few elements and gives many
buffers. Values of a wrong type or out of range surface as `struct.error`, TypeError and the like, which the caller
translates; a field that is set but not carried by the version is an EncodeError right away, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from struct import Struct as Packer
from struct import pack
from typing import Any

from headrace.protocol.compile import Source
from headrace.protocol.compile_decoder import ELEMENTS_PER_SLICE
from headrace.protocol.errors import EncodeError, EncodeTooLarge
from headrace.protocol.fields import FORMATS, STRUCT_DEFAULT, Declared, DeclaredMessage, Field
from headrace.protocol.varint import ONE_BYTE, encode_unsigned_varint

Encoder = Callable[[Any], list[Any]]
SlicedEncoder = Callable[[Any, int], Generator[None, None, list[Any]]]

_CHUNKS_PER_PART = 512


def compile_encoder(cls: type[DeclaredMessage], version: int) -> Encoder:
    """The encoder of `cls` in `version`, which must be one of its versions."""
    encoder: Encoder = _EncoderCompiler(cls, version, in_slices=False).compile()
    return encoder


def compile_sliced_encoder(cls: type[DeclaredMessage], version: int) -> SlicedEncoder:
    """Compile the same as a generator, which yields every few elements.

    Its second argument is the maximum number of bytes besides records; above it, it raises EncodeTooLarge.
    """
    encoder: SlicedEncoder = _EncoderCompiler(cls, version, in_slices=True).compile()
    return encoder


class _EncoderCompiler:
    def __init__(self, cls: type[DeclaredMessage], version: int, *, in_slices: bool) -> None:
        self.cls = cls
        self.version = version
        self.in_slices = in_slices
        self.flexible = cls.is_flexible(version)
        self.source = Source()
        self.source.namespace.update(
            uv=encode_unsigned_varint,
            short=ONE_BYTE,
            join=b"".join,
            pack_array=_pack_array,
            records_part=_records_part,
            no_place=_no_place,
            no_null=_no_null,
            too_large=_too_large,
        )
        # Fixed-size values that wait to be packed in one call: (format letter, expression).
        self.run: list[tuple[str, str]] = []
        self.add = "add"

    def compile(self) -> Any:
        source = self.source
        has_parts = self.in_slices or _carries_records(self.cls, self.version)
        with source.block("def encode(m, left):" if self.in_slices else "def encode(m):"):
            source.line("chunks = []")
            source.line("add = chunks.append")
            if has_parts:
                source.line("parts = []")
            self.structure(self.cls, "m", self.cls.__name__)
            self.flush()
            if self.in_slices:
                source.line("if chunks: parts.append(join(chunks)); left -= len(parts[-1])")
                source.line("if left < 0: raise too_large(m)")
                source.line("return parts")
                source.line("yield")
            elif has_parts:
                source.line("if chunks: parts.append(join(chunks))")
                source.line("return parts")
            else:
                source.line("return [join(chunks)]")
        kind = "sliced encoder" if self.in_slices else "encoder"
        return source.function("encode", f"{kind} of {self.cls.__name__} version {self.version}")

    def flush(self) -> None:
        """Pack the fixed-size values that were collected."""
        if not self.run:
            return
        run, self.run = self.run, []
        if all(expression.isdigit() for _, expression in run):
            packed = Packer(">" + "".join(letter for letter, _ in run)).pack(*(int(text) for _, text in run))
            self.source.line(f"{self.add}({packed!r})")
            return
        pack = self.source.constant(Packer(">" + "".join(letter for letter, _ in run)).pack, "P")
        self.source.line(f"{self.add}({pack}({', '.join(expression for _, expression in run)}))")

    def structure(self, structure: type[Declared], target: str, path: str) -> None:
        tagged: list[tuple[str, Field]] = []
        for name, field in structure.FIELDS.items():
            if self.version not in field.versions:
                if not field.ignorable:
                    self.refuse(field, f"{target}.{name}", f"{path}.{name}")
            elif field.is_tagged(self.version):
                tagged.append((name, field))
            else:
                self.value(field, f"{target}.{name}", f"{path}.{name}")
        if self.flexible:
            self.tags(tagged, target, path)

    def is_set(self, field: Field, expression: str) -> str:
        """The condition under which the value differs from the field's default."""
        if field.default is None:
            if field.kind == "struct":
                assert field.structure is not None
                self.source.namespace.setdefault(f"default_{field.structure.__name__}", field.structure())
                return f"{expression} is not None and {expression} != default_{field.structure.__name__}"
            return f"{expression} is not None"
        if field.default is STRUCT_DEFAULT:
            return f"{expression} != {self.source.default(field)}"
        if isinstance(field.default, list):
            return f"({expression} is None or len({expression}))"
        return f"{expression} != {self.source.default(field)}"

    def refuse(self, field: Field, expression: str, path: str) -> None:
        self.source.line(
            f"if {self.is_set(field, expression)}: raise no_place({path!r}, {expression}, {self.version})"
        )

    def value(self, field: Field, expression: str, path: str) -> None:
        if field.kind == "uuid":
            self.run.append(("16s", f"{expression}.bytes"))
        elif field.kind == "boolean":
            self.run.append(("?", expression))
        elif field.kind in FORMATS:
            self.run.append((FORMATS[field.kind][0], expression))
        elif field.kind == "struct":
            self.nested(field, expression, path)
        elif field.kind == "array":
            self.array(field, expression, path)
        elif field.kind == "records":
            self.records(field, expression, path)
        else:
            self.sized(field, expression, path)

    def length(self, size: str, letter: str) -> None:
        """Write a length or count that is in the variable `size`; -1 is null."""
        if not self.flexible:
            self.run.append((letter, size))
            self.flush()
            return
        line = self.source.line
        if not self.run:
            line(f"{self.add}(short[{size} + 1] if {size} < 127 else uv({size} + 1))")
            return
        # A length of one byte, which nearly all are, is packed together with what stands before it.
        run, self.run = self.run, [*self.run, ("B", f"{size} + 1")]
        with self.source.block(f"if {size} < 127:"):
            self.flush()
        with self.source.block("else:"):
            self.run = run
            self.flush()
            line(f"{self.add}(uv({size} + 1))")

    def begin(self, field: Field, expression: str, path: str, size: str, body: list[str], letter: str) -> str:
        """Bind the value to a name, prepare it by the lines of `body`, write its length; returns the name."""
        line = self.source.line
        value = self.source.fresh("v")
        line(f"{value} = {expression}")
        if self.version in field.nullable:
            line(f"if {value} is None:")
            line(f"    {size} = -1")
            with self.source.block("else:"):
                for text in body:
                    line(text.format(value))
        else:
            line(f"if {value} is None: raise no_null({path!r}, {self.version})")
            for text in body:
                line(text.format(value))
        self.length(size, letter)
        return value

    def sized(self, field: Field, expression: str, path: str) -> None:
        """A string or bytes."""
        size, data = self.source.fresh("n"), self.source.fresh("b")
        if field.kind == "string":
            body = [f"{data} = {{0}}.encode()", f"{size} = len({data})"]
            self.begin(field, expression, path, size, body, "h")
        else:
            body = [f"{data} = bytes(memoryview({{0}}))", f"{size} = len({data})"]
            self.begin(field, expression, path, size, body, "i")
        self.source.line(f"if {size} > 0: {self.add}({data})")

    def records(self, field: Field, expression: str, path: str) -> None:
        size, data = self.source.fresh("n"), self.source.fresh("b")
        body = [
            f"if type({{0}}) is bytes: {data} = {{0}}; {size} = len({data})",
            f"else: {data}, {size} = records_part({{0}})",
        ]
        self.begin(field, expression, path, size, body, "i")
        line = self.source.line
        line(f"if {size} > 0:")
        line("    parts.append(join(chunks))")
        if self.in_slices:
            line("    left -= len(parts[-1])")
        line("    chunks.clear()")
        line(f"    parts.append({data})")

    def nested(self, field: Field, expression: str, path: str) -> None:
        assert field.structure is not None
        line = self.source.line
        value = self.source.fresh("v")
        line(f"{value} = {expression}")
        if self.version not in field.nullable:
            self.structure(field.structure, value, path)
            return
        self.flush()
        line(f"if {value} is None:")
        line(f"    {self.add}(b'\\xff')")
        with self.source.block("else:"):
            self.run.append(("B", "1"))
            self.structure(field.structure, value, path)
            self.flush()

    def array(self, field: Field, expression: str, path: str) -> None:
        element = field.element
        assert element is not None
        line = self.source.line
        size = self.source.fresh("n")
        values = self.begin(field, expression, path, size, [f"{size} = len({{0}})"], "i")
        if element.kind in FORMATS and element.kind not in ("boolean", "uuid"):
            one = self.source.constant(Packer(">" + FORMATS[element.kind][0]).pack, "P")
            line(f"if {size} == 1: {self.add}({one}({values}[0]))")
            line(f"elif {size} > 0: {self.add}(pack_array({FORMATS[element.kind][0]!r}, {values}))")
            return
        item, index = self.source.fresh("i"), self.source.fresh("k")
        loop = (
            f"for {index}, {item} in enumerate({values}):" if self.in_slices else f"for {item} in {values}:"
        )
        with self.source.block(f"if {size} > 0:"), self.source.block(loop):
            if self.in_slices:
                line(f"if not {index} % {ELEMENTS_PER_SLICE}:")
                line("    yield")
                line(f"    if len(chunks) > {_CHUNKS_PER_PART}:")
                line("        parts.append(join(chunks))")
                line("        chunks.clear()")
                line("        left -= len(parts[-1])")
                line("        if left < 0: raise too_large(m)")
            if element.kind == "struct":
                assert element.structure is not None
                self.structure(element.structure, item, f"{path}[]")
            else:
                self.value(element, item, f"{path}[]")
            self.flush()

    def tags(self, tagged: list[tuple[str, Field]], target: str, path: str) -> None:
        """The tagged fields at the end of a struct. As a rule there are none, which is one zero byte."""
        if not tagged:
            self.run.append(("B", "0"))
            return
        line = self.source.line
        tagged = sorted(tagged, key=lambda item: item[1].tag or 0)
        conditions = [f"({self.is_set(field, f'{target}.{name}')})" for name, field in tagged]
        run = list(self.run)
        with self.source.block(f"if {' or '.join(conditions)}:"):
            self.flush()
            line(f"{self.add}(uv({' + '.join(f'bool({condition})' for condition in conditions)}))")
            outer = self.add
            for (name, field), condition in zip(tagged, conditions, strict=True):
                body = self.source.fresh("t")
                with self.source.block(f"if {condition}:"):
                    line(f"{body} = []")
                    self.add = f"{body}.append"
                    self.value(field, f"{target}.{name}", f"{path}.{name}")
                    self.flush()
                    self.add = outer
                    line(f"{body} = join({body})")
                    line(
                        f"{outer}({encode_unsigned_varint(field.tag or 0)!r} + uv(len({body}))); {outer}({body})"
                    )
        with self.source.block("else:"):
            self.run = [*run, ("B", "0")]
            self.flush()


def _carries_records(structure: type[Declared], version: int) -> bool:
    return any(
        version in field.versions
        and (
            field.kind == "records"
            or (field.structure is not None and _carries_records(field.structure, version))
            or (
                field.element is not None
                and field.element.structure is not None
                and _carries_records(field.element.structure, version)
            )
        )
        for field in structure.FIELDS.values()
    )


def _pack_array(letter: str, values: list[Any]) -> bytes:
    return pack(f">{len(values)}{letter}", *values)


def _records_part(value: Any) -> tuple[Any, int]:
    """Return the part to send for a `records` value (a buffer or a region of a file) and its size in bytes."""
    size = getattr(value, "size", None)
    if type(size) is int and not hasattr(value, "nbytes"):
        if size < 0:
            raise EncodeError(f"records: the size of {value!r} is {size} bytes")
        return value, size
    try:
        view = memoryview(value)
    except TypeError:
        raise EncodeError(
            f"records: {value!r} is neither a buffer nor a region with a size in bytes"
        ) from None
    return (view if view.format == "B" and view.ndim == 1 else view.cast("B")), view.nbytes


def _too_large(message: DeclaredMessage) -> EncodeTooLarge:
    return EncodeTooLarge(f"{type(message).__name__} takes more bytes than are allowed")


def _no_place(path: str, value: object, version: int) -> EncodeError:
    return EncodeError(
        f"{path} is {value!r}, but version {version} has no such field; leave it at its default"
    )


def _no_null(path: str, version: int) -> EncodeError:
    return EncodeError(f"{path} is None, which version {version} does not allow")


def materialize(part: Any) -> Any:
    """The bytes of a part: a buffer as it is, a region of a file read by its own `read()`."""
    if isinstance(part, (bytes, bytearray, memoryview)):
        return part
    read = getattr(part, "read", None)
    if read is None:
        raise EncodeError(f"records: {part!r} has no read(); send it by encode_parts()")
    return read()
