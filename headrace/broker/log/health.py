"""Whether a log may be used, and the errors of a log that may not, or whose disk fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from headrace.broker.log.errors import CorruptLogError
from headrace.broker.runtime import disk_errors
from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError

T = TypeVar("T")

logger = logging.getLogger("headrace.log")

READ_ERRORS: Final = (CorruptLogError, DecodeError, OSError)


class LogHealth:
    """The health of one log: usable, failed or closed. A log that has failed stays so until it is opened again."""

    __slots__ = ("_name", "failure", "is_closed", "is_damaged", "is_interrupted", "is_usable")

    def __init__(self, name: str) -> None:
        """`name` is that of the partition, for messages."""
        self._name = name
        self.is_usable = True
        self.is_closed = False
        self.failure: str | None = None
        """The reason why the log refuses everything, or None."""
        self.is_damaged = False
        """Whether it has failed because of the contents of its files; then it can be replaced by a copy of another
        replica's log.
        """
        self.is_interrupted = False
        """Whether it has failed in a change that a crash may interrupt, too, for lack of room, files or memory."""

    def check(self) -> None:
        """Raise KafkaError unless the log may be used."""
        if self.failure is not None:
            raise self._offline()
        if self.is_closed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"partition {self._name} is closed")

    def fail(self, why: str, interrupted_by: Exception | None = None) -> None:
        """Refuse everything from now on. `interrupted_by`: the error in a change that a crash may interrupt, too."""
        if self.failure is None:
            self.failure = why
            self.is_usable = False
            self.is_interrupted = disk_errors.is_passing(interrupted_by)
            if self.is_interrupted:
                return  # the raised error says so
            logger.error("partition %s is offline: %s", self._name, why)

    def close(self) -> None:
        self.is_closed = True
        self.is_usable = False

    def reading(self, find: Callable[[], T]) -> T:
        """Return the result of `find`, which reads the log's files. Raises KafkaError."""
        self.check()
        try:
            return find()
        except READ_ERRORS as error:
            raise self.read_error(error) from error

    def read_error(self, error: Exception) -> KafkaError:
        """Return the error of a failed read. The log fails if its files are damaged."""
        if isinstance(error, OSError):
            return self.storage_error("read", error)
        self.is_damaged = True
        self.fail(str(error))
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))

    def storage_error(self, verb: str, error: OSError) -> KafkaError:
        """Return the error of a disk that has failed, and tell the operator. The log stays usable."""
        disk_errors.tell(logger, f"cannot {verb} {self._name}", error)
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"cannot {verb} partition {self._name}: {disk_errors.why(error)}"
        )

    def sync_error(self, error: OSError) -> KafkaError:
        """Return the error of a failed fsync. The log fails, because what earlier writes have left is not known."""
        if disk_errors.is_unopened(error):  # the fsync has not begun, and the next one may
            return self.storage_error("flush", error)
        self.fail(
            f"the disk could not make records durable (fsync: {error}); restart to find out what survived"
        )
        return self._offline()

    def _offline(self) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"partition {self._name} is offline: {self.failure}")
