"""Ranges of objects in chunks: the number of requests of each way of reading, with each byte fetched once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from random import Random
from typing import Any

import pytest

from headrace.broker.remote.chunks import AHEAD_BYTES_MAX, CHUNK_BYTES, Chunks

HEADER_BYTES = 61
CONTENTS = Random(1).randbytes(40 * CHUNK_BYTES + 12_345)


class AtOnce(Executor):
    """An executor that runs work at once, so that every run is the same."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*args, **named))
        return done


def chunks(asked: list[tuple[int, int]]) -> Chunks:
    def read_range(name: str, position: int, size: int) -> bytes:
        asked.append((position, size))
        return CONTENTS[position : position + size]

    return Chunks(read_range, AtOnce(), 2 * len(CONTENTS))


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("step", [CHUNK_BYTES // 3, CHUNK_BYTES - 4_000, CHUNK_BYTES, 5 * CHUNK_BYTES // 2])
def test_a_sequential_read_fetches_several_chunks_at_a_time(step: int, looks: bool) -> None:
    """With `looks` it reads as a broker does: first the header of the batch at which the answer will end."""
    asked: list[tuple[int, int]] = []
    made = chunks(asked)
    for start in range(0, len(CONTENTS), step):
        if looks:
            made.read("o", len(CONTENTS), start, HEADER_BYTES)
            made.read("o", len(CONTENTS), start + step, HEADER_BYTES)
        assert made.read("o", len(CONTENTS), start, step) == CONTENTS[start : start + step]
    assert sum(size for _, size in asked) == len(CONTENTS), "each byte once"
    assert max(size for _, size in asked) <= AHEAD_BYTES_MAX
    assert made.requests == len(asked) <= 5 + 41 // 3, asked
