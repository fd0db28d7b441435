"""Declare a message once for all its versions.

    class FetchTopic(Struct):
        topic: str = string(versions="0-12", ignorable=True)
        topic_id: UUID = uuid(versions="13+", ignorable=True)
        partitions: list[FetchPartition] = array(FetchPartition)

    class FetchRequest(ApiMessage, key=1, kind="request", versions="4-17", flexible="12+"):
        max_wait_ms: int = int32()
        topics: list[FetchTopic] = array(FetchTopic)

A subclass inherits the fields of its base class; they come first.

Declaring gives a class with slots, a keyword-only constructor in which every field has a default, equality and a
repr. Encoders and decoders are compiled on first use, one flat function per message and version (`protocol.compile`),
so that importing a message costs nothing but its class. Objects are plain mutable values; they are not hashable.

A decoded message may hold views of the buffer it was decoded from (`records` fields): leave that buffer
alone meanwhile.
"""

from __future__ import annotations

import struct as struct_module
from collections.abc import Generator
from typing import Any, ClassVar, Literal, Self, dataclass_transform

from headrace.protocol.budget import DEFAULT_BUDGET_BYTES, DecodeBudget
from headrace.protocol.compile import compile_constructor
from headrace.protocol.compile_decoder import (
    Decoder,
    SlicedDecoder,
    compile_decoder,
    compile_sliced_decoder,
)
from headrace.protocol.compile_encoder import (
    Encoder,
    SlicedEncoder,
    compile_encoder,
    compile_sliced_encoder,
    materialize,
)
from headrace.protocol.errors import DecodeError, EncodeError
from headrace.protocol.explain import explain
from headrace.protocol.fields import (
    NIL_UUID,
    Field,
    Versions,
    array,
    binary,
    boolean,
    float64,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uint16,
    uint32,
    uuid,
)

__all__ = [
    "NIL_UUID",
    "ApiMessage",
    "Field",
    "Message",
    "Struct",
    "array",
    "binary",
    "boolean",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "records",
    "string",
    "struct",
    "uint16",
    "uint32",
    "uuid",
]


@dataclass_transform(kw_only_default=True)
class StructMeta(type):
    """Turns the fields of a class body into slots and keeps them in `FIELDS`, in the order of the wire: inherited
    ones first.
    """

    def __new__(
        metaclass, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **keywords: Any
    ) -> StructMeta:
        fields = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        for key in fields:
            del namespace[key]
        namespace["__slots__"] = tuple(fields)
        inherited = {key: field for base in bases for key, field in getattr(base, "FIELDS", {}).items()}
        namespace["FIELDS"] = inherited | fields
        return super().__new__(metaclass, name, bases, namespace, **keywords)


class Struct(metaclass=StructMeta):
    """A group of fields inside a message."""

    FIELDS: ClassVar[dict[str, Field]]

    def __init__(self, **values: Any) -> None:
        # The real constructor is compiled when the first object is made, and replaces this one.
        cls = type(self)
        constructor = compile_constructor(cls)
        cls.__init__ = constructor  # type: ignore[method-assign]
        constructor(self, **values)

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "__init__" not in cls.__dict__:
            # The compiled constructor of a base class lacks the fields that this class adds.
            cls.__init__ = Struct.__init__  # type: ignore[method-assign]

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = []
        for name, field in self.FIELDS.items():
            value = getattr(self, name)
            if field.kind == "records" and value is not None:
                value = (
                    f"<{getattr(value, 'nbytes', None) or getattr(value, 'size', None) or len(value)} bytes>"
                )
                shown.append(f"{name}={value}")
            elif value != field.default:
                shown.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


class Message(Struct):
    """A struct that stands alone on the wire, in a range of versions."""

    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_FROM: ClassVar[int]
    """The first version with compact lengths and tagged fields; above MAX_VERSION when there is none."""
    _decoders: ClassVar[dict[int, Decoder]]
    _encoders: ClassVar[dict[int, Encoder]]
    _sliced_decoders: ClassVar[dict[int, SlicedDecoder]]
    _sliced_encoders: ClassVar[dict[int, SlicedEncoder]]

    def __init_subclass__(cls, *, versions: str = "", flexible: str = "none", **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if not versions:
            return
        known = Versions.parse(versions)
        flexible_versions = Versions.parse(flexible)
        cls.MIN_VERSION = known.low
        cls.MAX_VERSION = known.high
        cls.FLEXIBLE_FROM = flexible_versions.low if flexible_versions.high >= 0 else known.high + 1
        cls._decoders = {}
        cls._encoders = {}
        cls._sliced_decoders = {}
        cls._sliced_encoders = {}

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """Whether `version` has compact lengths and tagged fields (KIP-482)."""
        return version >= cls.FLEXIBLE_FROM

    @classmethod
    def decode(
        cls,
        buffer: bytes | bytearray | memoryview,
        version: int,
        budget: DecodeBudget | None = None,
        position: int = 0,
        *,
        ignore_rest: bool = False,
    ) -> Self:
        """Decode the message that fills `buffer` from byte `position` to its end.

        `ignore_rest` lets bytes follow it, as Apache Kafka does with requests: librdkafka leaves three behind
        the null list of topics in Metadata 9 and newer.

        Raises DecodeError, and nothing else, for a version out of range, malformed or left-over bytes, and
        BudgetExceeded before allocating more than `budget` allows (DEFAULT_BUDGET_BYTES if there is none).
        """
        decoder = cls._decoders.get(version)
        if decoder is None:
            cls._check_version(version, DecodeError)
            decoder = cls._decoders[version] = compile_decoder(cls, version)
        try:
            if budget is None:
                message, end, _ = decoder(buffer, position, DEFAULT_BUDGET_BYTES)
            else:
                message, end, budget.remaining_bytes = decoder(buffer, position, budget.remaining_bytes)
        except (struct_module.error, IndexError, UnicodeDecodeError) as error:
            raise cls._undecodable(version, len(buffer), error) from None
        if end != len(buffer) and not ignore_rest:
            raise cls._left_over(version, end, len(buffer))
        return message  # type: ignore[no-any-return]

    @classmethod
    def decode_in_slices(
        cls,
        buffer: bytes | bytearray | memoryview,
        version: int,
        budget: DecodeBudget,
        position: int = 0,
        *,
        ignore_rest: bool = False,
    ) -> Generator[None, None, Self]:
        """`decode` as a generator that yields every few elements and returns the message: for large frames, whose
        decoding must let others run in between.
        """
        decoder = cls._sliced_decoders.get(version)
        if decoder is None:
            cls._check_version(version, DecodeError)
            decoder = cls._sliced_decoders[version] = compile_sliced_decoder(cls, version)
        try:
            message, end, budget.remaining_bytes = yield from decoder(
                buffer, position, budget.remaining_bytes
            )
        except (struct_module.error, IndexError, UnicodeDecodeError) as error:
            raise cls._undecodable(version, len(buffer), error) from None
        if end != len(buffer) and not ignore_rest:
            raise cls._left_over(version, end, len(buffer))
        return message  # type: ignore[no-any-return]

    @classmethod
    def _undecodable(cls, version: int, size: int, error: Exception) -> DecodeError:
        if isinstance(error, UnicodeDecodeError):
            return DecodeError(
                f"{cls.__name__} version {version} has text that is not UTF-8: {error.reason} "
                f"at byte {error.start} of {bytes(error.object[:64])!r}"
            )
        return DecodeError(
            f"{cls.__name__} version {version} is cut off: the buffer ends at byte {size}, inside of a field"
        )

    @classmethod
    def _left_over(cls, version: int, end: int, size: int) -> DecodeError:
        return DecodeError(
            f"{cls.__name__} version {version} ends at byte {end}, but {size - end} more bytes follow it"
        )

    def encode(self, version: int) -> bytes:
        """The message as one bytes object. Regions of files among its records are read.

        Raises EncodeError if the version is unknown, a value does not fit, or the version lacks a field that is set.
        """
        parts = self._encode(version)
        try:
            return b"".join(parts)
        except TypeError:
            return b"".join(map(materialize, parts))

    def encode_parts(self, version: int) -> list[Any]:
        """Return the message as a list of buffers, and regions of files if it has any, to be sent one after the other.

        Records are in the list by reference, without a copy. Raise EncodeError as `encode` does.
        """
        return self._encode(version)

    def _encode(self, version: int) -> list[Any]:
        cls = type(self)
        encoder = cls._encoders.get(version)
        if encoder is None:
            cls._check_version(version, EncodeError)
            encoder = cls._encoders[version] = compile_encoder(cls, version)
        try:
            return encoder(self)
        except (struct_module.error, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise EncodeError(f"{cls.__name__} version {version}: {explain(self, version, error)}") from error

    def encode_in_slices(self, version: int, bytes_max: int) -> Generator[None, None, list[Any]]:
        """`encode_parts` as a generator that yields every few elements and returns the parts: for large messages, whose
        encoding must let others run in between. Leave the message alone meanwhile.

        Raises EncodeTooLarge when there are more than `bytes_max` bytes besides records, EncodeError as `encode`.
        """
        cls = type(self)
        encoder = cls._sliced_encoders.get(version)
        if encoder is None:
            cls._check_version(version, EncodeError)
            encoder = cls._sliced_encoders[version] = compile_sliced_encoder(cls, version)
        try:
            return (yield from encoder(self, bytes_max))
        except (struct_module.error, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise EncodeError(f"{cls.__name__} version {version}: {explain(self, version, error)}") from error

    @classmethod
    def _check_version(cls, version: int, problem: type[Exception]) -> None:
        if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
            raise problem(
                f"{cls.__name__} has versions {cls.MIN_VERSION} to {cls.MAX_VERSION}, not {version}"
            )


class ApiMessage(Message):
    """A request or response: the part of a frame behind the header."""

    API_KEY: ClassVar[int]
    KIND: ClassVar[Literal["request", "response"]]

    def __init_subclass__(
        cls, *, key: int | None = None, kind: Literal["request", "response"] | None = None, **keywords: Any
    ) -> None:
        super().__init_subclass__(**keywords)
        if key is not None and kind is not None:
            cls.API_KEY = key
            cls.KIND = kind

    @classmethod
    def header_version(cls, version: int) -> int:
        """The version of the header in front of the message: 1 or 2 for a request, 0 or 1 for a response."""
        return int(cls.is_flexible(version)) + int(cls.KIND == "request")
