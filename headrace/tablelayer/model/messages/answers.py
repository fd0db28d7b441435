"""What answers begin with: of a whole request, and of one bucket of it."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, Struct, int16, int32, string


class TableResponse(ApiMessage):
    """What every response begins with: the error of a request as a whole."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class BucketAnswer(Struct):
    """What the answer of one bucket begins with: an error here leaves the other buckets of the request as they are."""

    bucket: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
