"""The first fields of every response and of the answer for one bucket."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, Struct, int16, int32, string


class TableResponse(ApiMessage):
    """A response that begins with the error of the whole request."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class BucketAnswer(Struct):
    """The answer for one bucket. Its error does not concern the other buckets of the request."""

    bucket: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
