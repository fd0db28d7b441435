"""Run a request's work on each of its buckets; a failed bucket does not affect the others."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.protocol.one_line import one_line
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.messages.answers import BucketAnswer
from headrace.tablelayer.model.table.definition import StoredTable

logger = logging.getLogger("headrace.tables")

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
_FAILURE_LENGTH_MAX = 2000
_BEGUN_TOGETHER = 16
"""Number of a request's buckets that start in one turn of the event loop: some milliseconds."""


async def each_bucket(work: Callable[[Asked], Awaitable[Answer]], buckets: Iterable[Asked]) -> list[Answer]:
    """Return the results for all buckets, in the order of `buckets`.

    They run concurrently. Only a few start in one turn of the event loop, so that a request for thousands of buckets
    does not block it.
    """
    listed = list(buckets)
    if len(listed) == 1:
        return [await work(listed[0])]

    async def one(asked: Asked) -> Answer:
        return await work(asked)

    begun = []
    async with asyncio.TaskGroup() as group:
        for asked in listed:
            begun.append(group.create_task(one(asked)))
            if len(begun) % _BEGUN_TOGETHER == 0:
                await asyncio.sleep(0)
    return [each.result() for each in begun]


def check_each_once(definition: StoredTable, buckets: Sequence[int]) -> None:
    """Raise TableError if a read names a bucket twice or names more buckets than the table has."""
    if len(set(buckets)) < len(buckets):
        bucket, times = Counter(buckets).most_common(1)[0]
        raise TableError(
            TableErrorCode.INVALID_TABLE,
            f"bucket {bucket} of {definition.path} is named {times} times; a read names each bucket once",
        )
    if len(buckets) > definition.bucket_count:
        raise TableError(
            TableErrorCode.INVALID_TABLE,
            f"{definition.path} has {definition.bucket_count} buckets, but {len(buckets)} are named",
        )


def refuse(answer: BucketAnswer, error: Exception, definition: StoredTable, bucket: int) -> None:
    """Put the error of one bucket into its answer."""
    if isinstance(error, (TableError, KafkaError)):
        answer.error_code, answer.error_message = int(error.code), error.message
    elif isinstance(error, DecodeError):
        logger.error(
            "table %s bucket %d: %s", definition.path, bucket, one_line(str(error), _FAILURE_LENGTH_MAX)
        )
        answer.error_code, answer.error_message = int(ErrorCode.CORRUPT_MESSAGE), str(error)
    else:
        logger.error("table %s bucket %d", definition.path, bucket, exc_info=error)
        answer.error_code = int(ErrorCode.UNKNOWN_SERVER_ERROR)
        answer.error_message = f"table {definition.path} bucket {bucket}: {error}"
