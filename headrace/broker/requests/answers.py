"""What one answer may cost: bytes bound it, before they are paid.

A request of a few bytes can ask for much, or for the same again and again. A handler whose answer can be much larger
than what was asked charges what it is about to add.
"""

from __future__ import annotations

from headrace.protocol.errors import ErrorCode, KafkaError

ANSWER_BYTES_MAX = 100 << 20
"""Of one answer without records: as much as a request may have (`socket.request.max.bytes`)."""


class AnswerBudget:
    """Bytes that may still be added to an answer."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = ANSWER_BYTES_MAX

    def charge(self, size_bytes: int) -> None:
        """Raises KafkaError when the answer would be too large."""
        self._left -= size_bytes
        if self._left < 0:
            raise answer_too_large()


def answer_too_large() -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"the answer would take more than {ANSWER_BYTES_MAX} bytes; ask for less at a time",
    )
