"""Errors of a log as a whole, of its cleaning, and of single records that are to be appended."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.protocol.errors import ErrorCode, KafkaError


class CorruptLogError(Exception):
    """The log is damaged in the middle: readable batches follow an unreadable one, or offsets are missing.

    Cutting the log there would silently drop acknowledged records, so it is not opened. The text names the damaged file
    and the place, and says how to abandon the rest on purpose.
    """


class RecordErrors(KafkaError):  # noqa: N818 - the name other folders know
    """A produced batch was refused because of some of its records; nothing of it was written.

    `errors` are pairs of a record's index in the batch and its fault (Produce v8 and newer show them).
    """

    def __init__(
        self,
        message: str,
        errors: Sequence[tuple[int, str]] = (),
        code: ErrorCode = ErrorCode.INVALID_RECORD,
    ) -> None:
        super().__init__(code, message)
        self.errors = tuple(errors)


class InRemoteStorage(KafkaError):  # noqa: N818 - it says where to read on
    """The records are in remote storage only. A caller that can wait reads them with `Partition.read_anywhere`."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


class CleaningError(Exception):
    """The log cannot be cleaned in its present state; the text gives the reason and the remedy. Nothing was lost."""


class CleaningAbandoned(Exception):  # noqa: N818 - no error: the log has changed under the cleaning
    """The segments that were being cleaned are gone, or the log is closed."""


class HalfWrittenError(OSError):
    """A failed write may have left a part of it behind the end of its file. The text gives the reason."""
