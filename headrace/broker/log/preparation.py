"""Checks of a client's batch beyond its header, as a topic demands them: rules B5 (oldest stamp), B7, B8 and B9.

A batch is checked as in Kafka: the number of records is that of its header, each has its stated length, and they are
numbered one after another (rule B9, `LogConfig.strict_records`). If a configuration demands more
(`LogConfig.needs_columns`), its records are decoded. They are recompressed if the batch has another codec than
`compression.type`. The cost grows with the decompressed bytes, so this can be done ahead of the append, in any thread;
`Effort` bounds what is done at once.

Pure, except for numba, which is loaded on first use.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

from headrace.broker.configs.topics import LONG_MAX
from headrace.broker.log.config import LogConfig
from headrace.broker.log.errors import RecordErrors
from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.protocol.loading.lazy import lazy_module
from headrace.protocol.records.check import Effort, TakesTime, check_batch, columns_within
from headrace.protocol.records.compression import LZ4_DEFAULT_LEVEL, DecompressedTooLarge
from headrace.protocol.records.header import COMPRESSION_MASK, NO_TIMESTAMP, BatchHeader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.protocol.records.decode import RecordColumns
else:
    np = lazy_module("numpy")

_CODECS: Final = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_ERRORS_LISTED_MAX: Final = 1000
"""Maximum number of listed errors: more are not useful, and each costs bytes in the answer."""
_RECOMPRESSION_NS: Final = {(0, None): 1, (2, None): 5, (3, LZ4_DEFAULT_LEVEL): 5}
"""Maximum cost of a byte in ns, by codec and level; other codecs are always recompressed in a thread."""
_NEVER_NS: Final = 1 << 40
_DECOMPRESSED_FREELY: Final = 16 * 1024 * 1024
"""A batch that decompresses to more bytes is prepared alone, so that several threads do not take the maximum each."""

_large = threading.Lock()


def prepare(
    batch: memoryview,
    header: BatchHeader,
    config: LogConfig,
    now_ms: int,
    effort: Effort | None = None,
    *,
    large: bool = True,
) -> memoryview:
    """Return the batch as it is to be appended; the same one if nothing changes. It has passed `validate_batch`.

    Raises KafkaError: INVALID_RECORD (with the indexes of the wrong records), INVALID_TIMESTAMP, and MESSAGE_TOO_LARGE
    for a batch that decompresses to more than `LogConfig.decompressed_bytes_max`; Kafka's producers then split it and
    send its parts. With `effort` it raises TakesTime instead of doing more at once. Without `large` it raises TakesTime
    instead of waiting for its turn among batches that decompress to many bytes.
    """
    # Most batches need no more than this.
    if not (config.needs_columns or header.attributes & COMPRESSION_MASK):
        try:
            largest = check_batch(header, batch, bytes_max=len(batch), effort=effort)
        except DecodeError as error:
            raise _refused(error) from None
        return batch if largest == header.max_timestamp else _with_largest(batch, header, config, largest)
    try:
        return _prepare(
            batch, header, config, now_ms, min(_DECOMPRESSED_FREELY, config.decompressed_bytes_max), effort
        )
    except DecompressedTooLarge:
        if effort is not None or not large:
            raise TakesTime from None
    except DecodeError as error:
        raise _refused(error) from None
    try:
        with _large:
            return _prepare(batch, header, config, now_ms, config.decompressed_bytes_max, None)
    except DecodeError as error:
        raise _refused(error) from None


def decode_client_batch(header: BatchHeader, batch: memoryview, bytes_max: int) -> RecordColumns:
    """Return the records of a client's batch whose bytes are known to be intact. Any thread may call it.

    Raises KafkaError: INVALID_RECORD, and MESSAGE_TOO_LARGE if the records and their columns take more than
    `bytes_max`.
    """
    try:
        with contextlib.suppress(DecompressedTooLarge):
            return columns_within(header, batch, min(_DECOMPRESSED_FREELY, bytes_max))
        with _large:
            return columns_within(header, batch, bytes_max)
    except DecodeError as error:
        raise _refused(error) from None


def _refused(error: DecodeError) -> KafkaError:
    if isinstance(error, DecompressedTooLarge):
        return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{error}; send smaller batches")
    return KafkaError(ErrorCode.INVALID_RECORD, str(error))


def _prepare(
    batch: memoryview,
    header: BatchHeader,
    config: LogConfig,
    now_ms: int,
    bytes_max: int,
    effort: Effort | None,
) -> memoryview:
    if not config.needs_columns:
        largest = check_batch(header, batch, bytes_max=bytes_max, effort=effort)
        return _with_largest(batch, header, config, largest)
    codec = _CODECS.get(config.compression_type, header.compression)
    records = columns_within(header, batch, bytes_max, effort)
    if effort is not None and codec != header.compression:
        effort.take(_RECOMPRESSION_NS.get((codec, _level(config, codec)), _NEVER_NS) * records.payload.size)
    if config.is_compacted:
        _check_keys(records)
    if not config.is_log_append_time:
        _check_oldest(records, config, now_ms)
    if config.strict_records:
        if int(records.offsets[0]) != header.base_offset or not bool(np.all(np.diff(records.offsets) == 1)):
            raise DecodeError("the batch's records are not numbered one after another from its base offset")
        batch = _with_largest(batch, header, config, int(records.timestamps.max()))
    if codec == header.compression:
        return batch
    from headrace.protocol.records.rewrite import recompressed

    return memoryview(recompressed(batch, records, codec, _level(config, codec)))


def _level(config: LogConfig, codec: int) -> int | None:
    if codec == _CODECS["gzip"]:
        return config.compression_gzip_level if config.compression_gzip_level > 0 else None
    if codec == _CODECS["lz4"]:
        return config.compression_lz4_level
    return config.compression_zstd_level if codec == _CODECS["zstd"] else None


def _check_keys(records: RecordColumns) -> None:
    keyless = np.flatnonzero(records.key_length < 0)
    if len(keyless):
        raise RecordErrors(
            f"{len(keyless)} of {len(records)} records have no key, which a compacted topic needs",
            [
                (index, "a compacted topic accepts no record without a key")
                for index in keyless[:_ERRORS_LISTED_MAX].tolist()
            ],
        )


def _check_oldest(records: RecordColumns, config: LogConfig, now_ms: int) -> None:
    before_max = config.message_timestamp_before_max_ms
    if before_max == LONG_MAX:
        return
    stamps = records.timestamps
    old = np.flatnonzero((stamps != NO_TIMESTAMP) & (stamps < now_ms - before_max))
    if len(old):
        rule = (
            f"more than {before_max} ms before {now_ms}, the broker's time (message.timestamp.before.max.ms)"
        )
        raise _out_of_range(records, old, rule)


def late_records(
    batch: memoryview, header: BatchHeader, config: LogConfig, now_ms: int, effort: Effort | None
) -> KafkaError:
    """Return the error of a batch with a stamp beyond `message.timestamp.after.max.ms`, with the records that have one.
    Raises TakesTime if finding them takes more than `effort`.
    """
    after_max = config.message_timestamp_after_max_ms
    rule = f"more than {after_max} ms after {now_ms}, the broker's time (message.timestamp.after.max.ms)"
    with contextlib.suppress(DecodeError):  # a batch that cannot be read is refused all the same
        bytes_max = min(_DECOMPRESSED_FREELY, config.decompressed_bytes_max)
        records = columns_within(header, batch, bytes_max, effort)
        late = np.flatnonzero(records.timestamps > now_ms + after_max)
        if len(late):
            return _out_of_range(records, late, rule)
    return KafkaError(
        ErrorCode.INVALID_TIMESTAMP,
        f"the batch claims a record that is stamped {header.max_timestamp}, {rule}",
    )


def _out_of_range(records: RecordColumns, indexes: NDArray[np.int64], rule: str) -> RecordErrors:
    """Return the error of records whose stamps break a rule."""
    stamps = records.timestamps
    others = f" ({len(indexes)} records are)" if len(indexes) > 1 else ""
    return RecordErrors(
        f"record {indexes[0]} of the batch: it is stamped {stamps[indexes[0]]}, {rule}{others}",
        [
            (index, f"it is stamped {stamps[index]}, {rule}")
            for index in indexes[:_ERRORS_LISTED_MAX].tolist()
        ],
        ErrorCode.INVALID_TIMESTAMP,
    )


def _with_largest(batch: memoryview, header: BatchHeader, config: LogConfig, largest: int) -> memoryview:
    """Correct a wrong largest timestamp, as Kafka does: some clients do not compute it."""
    if config.is_log_append_time or largest == header.max_timestamp:
        return batch
    from headrace.protocol.records.rewrite import with_max_timestamp

    return memoryview(with_max_timestamp(batch, largest))
