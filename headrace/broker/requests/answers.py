"""Limit the size of one answer, before its bytes are allocated.

A request of a few bytes can ask for a lot, or for the same repeatedly. A handler whose answer can be much larger than
the request charges the bytes that it is about to add.
"""

from __future__ import annotations

from headrace.protocol.errors import ErrorCode, KafkaError

ANSWER_BYTES_MAX = 100 << 20
"""Maximum number of bytes of an answer without records: the same as for a request (`socket.request.max.bytes`)."""


class AnswerBudget:
    """Bytes that may still be added to an answer."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = ANSWER_BYTES_MAX

    def charge(self, size_bytes: int) -> None:
        """Raise KafkaError if the answer would be too large."""
        self._left -= size_bytes
        if self._left < 0:
            raise answer_too_large()


def answer_too_large() -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"the answer would exceed {ANSWER_BYTES_MAX} bytes; ask for less at a time",
    )
