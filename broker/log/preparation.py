"""What a topic may demand of a client's batch beyond its header: rules B5 (oldest stamp), B7, B8 and B9.

Most topics demand nothing, and their batches are never opened. Where a configuration does
(`LogConfig.looks_into_batches`) the batch is decoded once, checked, and recompressed if it comes in another codec than
`compression.type`. That takes milliseconds for a large batch, so it can be done ahead of the append, in any thread.

Pure. Imports numba when a batch is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from broker.log.config import LogConfig
from broker.log.errors import RecordErrors
from protocol.errors import DecodeError, ErrorCode, KafkaError
from protocol.records.header import NO_TIMESTAMP, BatchHeader

if TYPE_CHECKING:
    from protocol.records.decode import RecordColumns

_UNBOUNDED: Final = 9223372036854775807
_CODECS: Final = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_ERRORS_LISTED_MAX: Final = 1000
"""Nobody reads more of them, and each costs bytes in the answer."""


def prepare(batch: memoryview, header: BatchHeader, config: LogConfig, now_ms: int) -> memoryview:
    """The batch as it is to be appended; the same one if nothing changes. It has passed `validate_batch`.

    Raises KafkaError: INVALID_RECORD (with the records' indexes where single ones are wrong), INVALID_TIMESTAMP.
    """
    from protocol.records.decode import decode_records

    codec = _CODECS.get(config.compression_type, header.compression)
    try:
        records = decode_records(batch)
    except DecodeError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from None
    if config.is_compacted:
        _check_keys(records)
    if not config.is_log_append_time:
        _check_oldest(records, config, now_ms)
    if config.strict_records:
        batch = _made_honest(batch, records, config)
    if codec == header.compression:
        return batch
    from protocol.records.rewrite import recompressed

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
    if before_max == _UNBOUNDED:
        return
    stamps = records.timestamps
    old = np.flatnonzero((stamps != NO_TIMESTAMP) & (stamps < now_ms - before_max))
    if len(old):
        oldest = int(stamps[old].min())
        raise RecordErrors(
            f"a record is stamped {oldest}, more than {before_max} ms before {now_ms}, "
            "the broker's time (message.timestamp.before.max.ms)",
            [
                (index, f"its timestamp {stamps[index]} is too old")
                for index in old[:_ERRORS_LISTED_MAX].tolist()
            ],
            ErrorCode.INVALID_TIMESTAMP,
        )


def _made_honest(batch: memoryview, records: RecordColumns, config: LogConfig) -> memoryview:
    """Decoding has checked counts and lengths. Offsets must be dense; a wrong largest timestamp is put right, as
    Kafka does: some clients do not compute it."""
    header = records.header
    if int(records.offsets[0]) != header.base_offset or not bool(np.all(np.diff(records.offsets) == 1)):
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            "the batch's records are not numbered one after another from its base offset",
        )
    largest = int(records.timestamps.max())
    if config.is_log_append_time or largest == header.max_timestamp:
        return batch
    from protocol.records.rewrite import with_max_timestamp

    return memoryview(with_max_timestamp(batch, largest))
