"""The table APIs under mutated requests, watched by `server.py` and `oracle.py`.

The requests are those of `messages` in every version, and Kafka's Produce, Fetch, CreateTopics,
IncrementalAlterConfigs, DescribeConfigs, CreatePartitions, ListOffsets and Metadata about tables. The mutations change:
- numbers (borders, neighbours) and texts (empty, long, control characters, other tables' names);
- ids (of other tables, partitions and topics);
- arrays (emptied, doubled up to 2,000 times, reversed, cut);
- definitions and changes in JSON, column lists and options;
- Arrow batches and keys (buffers, nodes, compression, headers), filters and cursors;
- Kafka's batches with JSON, Debezium and Avro values;
- the bytes of frames.

`HEADRACE_FUZZ_SEED` and `HEADRACE_FUZZ_SECONDS` choose the requests and the duration. `run.KNOWN_OPEN` names requests
that are left out.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from time import thread_time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.tablelayer.cli.warm import warm_up
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.batch import ArrowBatch, encode_arrow_batch
from headrace.tablelayer.server.bucket import log_bucket
from headrace.tablelayer.server.extension import TableExtension
from headrace.tablelayer.server.rights.table_rights import TableRights
from headrace.tablelayer.tests.fuzz import mutations, server
from headrace.tablelayer.tests.fuzz import run as fuzzing
from headrace.tablelayer.tests.fuzz.mutations import Chance
from headrace.tablelayer.tests.fuzz.run import Run, fuzz, journal, replay, seed_and_seconds, smallest
from headrace.tablelayer.tests.fuzz.world import TABLE_REQUESTS

REQUESTS = 600
"""Number of requests by default."""


@pytest.fixture(autouse=True)
def _warm() -> Iterator[None]:
    """Compile kernels and collect garbage first: what other tests left must not become work of the loop's thread."""
    list(warm_up())
    gc.collect()
    gc.freeze()
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)
    gc.unfreeze()


def test_every_request_of_the_table_layer_is_fuzzed() -> None:
    assert set(TABLE_REQUESTS) == {each.request for each in TableExtension().apis()}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mutated_requests_leave_the_server_correct(tmp_path: Path) -> None:
    """The requests are the same each time, unless the environment asks for others; `make soak` sends others for ten
    minutes.
    """
    seed, seconds = seed_and_seconds(0, seed=1)
    print(f"HEADRACE_FUZZ_SEED={seed} HEADRACE_FUZZ_SECONDS={seconds}")
    report = fuzz(seed, seconds or 500, tmp_path, requests_max=sys.maxsize if seconds else REQUESTS)
    print(report)
    assert report.acknowledged


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_mutated_requests_leave_the_server_correct_for_ten_minutes(tmp_path: Path) -> None:
    seed, seconds = seed_and_seconds(600)
    print(f"HEADRACE_FUZZ_SEED={seed} HEADRACE_FUZZ_SECONDS={seconds}")
    report = fuzz(seed, seconds, tmp_path)
    print(report)
    assert set(report.kinds) > {kind.__name__ for kind in fuzzing.REQUESTS}


def test_arrays_of_long_arrays_stay_within_the_decoding_budget() -> None:
    inner = CreatableTopicConfig(name="n" * 1000, value="v" * 1000)
    request = CreateTopicsRequest(topics=[CreatableTopic(name="t", configs=[inner] * 2000)])
    world: Any = SimpleNamespace(scans=[], epochs=[])
    topics = CreateTopicsRequest.FIELDS["topics"]
    lengths = {
        len(mutations._array(world, "topics", topics, 6, list(request.topics), Chance(seed)))
        for seed in range(100)
    }
    assert 2 <= max(lengths) <= 8


def frames_of(folder: Path, *requests: str) -> list[bytes]:
    """Honest frames for any world."""
    run, rng = Run(folder / "world"), np.random.default_rng(5)
    try:
        run.make()
        table = run.world.tables["log"]
        rows = m.AppendRowsRequest(
            table_id=table.table_id, acks=-1, timeout_ms=5000,
            buckets=[m.WriteBucket(bucket=0, batch=table.batch(rng))],
        )  # fmt: skip
        made = {
            "rows": rows,
            "names": m.ListTablesRequest(database="default"),
            "none": m.ListDatabasesRequest(),
        }
        frames = [run.world.frame(made[each]) for each in requests]
        assert [run.send(each) for each in frames] == [None] * len(frames)
    finally:
        run.close()
    assert journal(folder / "world.frames") == frames
    return frames


def _fails(*_: Any) -> Any:
    raise RuntimeError("as the test wants it")


def _works_on(*_: Any) -> Any:
    ends = thread_time() + server.LOOP_SECONDS_MAX + 0.1
    while thread_time() < ends:
        pass
    return []


def _takes_memory(*_: Any) -> Any:
    taken = b"x" * (200 << 20)
    return [str(len(taken))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defect", "complaint"),
    [
        (_fails, "a traceback in the log"),
        pytest.param(_works_on, "the event loop worked for", marks=pytest.mark.soak),
        pytest.param(_takes_memory, "grew by", marks=pytest.mark.soak),
    ],
)
def test_a_planted_defect_is_found_and_its_requests_are_minimized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defect: Any, complaint: str
) -> None:
    frames = frames_of(tmp_path, "none", "rows", "none", "names")
    monkeypatch.setattr(server, "REQUEST_BYTES_MAX", 100 << 20)
    assert replay(frames) is None
    monkeypatch.setattr(TableRights, "visible_tables", defect)
    assert complaint in (replay(frames[-1]) or "")
    assert smallest(frames) == frames[-1:]


@pytest.mark.slow
def test_a_changed_acknowledged_row_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = frames_of(tmp_path, "rows", "rows")
    stored: list[Any] = []
    honest = log_bucket._checked

    def mixed_up(batch: memoryview, definition: Any, now_ms: int) -> bytearray:
        stored.append(bytes(batch))
        return honest(memoryview(_another_row(bytes(batch), definition)), definition, now_ms)

    monkeypatch.setattr(log_bucket, "_checked", mixed_up)
    assert "acknowledged" in (replay([first, second]) or "")
    assert stored


def _another_row(batch: bytes, definition: Any) -> bytes:
    parsed = ArrowBatch.parse(batch)
    rows = parsed.to_record_batch(definition.schema.arrow())
    mixed = rows.take(list(range(rows.num_rows))[::-1]) if rows.num_rows > 1 else rows.slice(0, 0)
    return bytes(
        encode_arrow_batch(
            mixed, schema_id=parsed.schema_id, change_types=None, compression=parsed.compression
        )
    )
