"""What can be wrong with a log as a whole, with its cleaning, and with single records that are to be appended."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.protocol.errors import ErrorCode, KafkaError


class CorruptLogError(Exception):
    """The log is damaged in the middle: readable batches follow an unreadable one, or offsets are missing.

    Cutting it there would silently drop records that were acknowledged, so it is not opened. The text says
    which file is damaged, where, and how to give the rest up on purpose.
    """


class RecordErrors(KafkaError):  # noqa: N818 - the name other folders know
    """A produced batch was refused because of some of its records; nothing of it was written.

    `errors` are pairs of the record's index in the batch and what is wrong with it (Produce v8 and newer show them).
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
    """Records that are in remote storage only: whoever can wait reads them from there (`Partition.read_anywhere`)."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


class CleaningError(Exception):
    """The log cannot be cleaned as things are; the text says why and what to do. Nothing was lost."""


class CleaningAbandoned(Exception):  # noqa: N818 - no error: the log has changed under the cleaning
    """Segments that were being cleaned are gone, or the log is closed."""
