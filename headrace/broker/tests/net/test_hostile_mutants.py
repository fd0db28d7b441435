"""Tests of the tests: each check of rules F2 and F5 to F9 notices a defect that is injected.

F1 and F4 have theirs beside the checks, in `test_hostile`; that of the decompressors is in
`headrace/protocol/tests/records/test_records.py`.
"""

from __future__ import annotations

import asyncio
import gc
import struct
import time
from collections.abc import Iterator
from functools import partial

import pytest

from headrace.broker.api import dispatch, produce
from headrace.broker.net import limits
from headrace.broker.net.frame_receiver import FrameReceiver
from headrace.broker.net.limits import Limits
from headrace.broker.net.listener import Network
from headrace.broker.net.reply import CloseConnection, Pending
from headrace.broker.tests.api import test_versions
from headrace.broker.tests.net import test_bombs, test_connection, test_hostile

# A check that fails halfway leaves its hundreds of connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

NOTICED = (AssertionError, TimeoutError, ConnectionError, asyncio.IncompleteReadError, pytest.fail.Exception)


@pytest.fixture(autouse=True)
def _collected_here() -> Iterator[None]:
    yield
    gc.collect()


def test_f2_a_length_that_is_cut_in_two_is_taken_for_garbage(monkeypatch) -> None:
    original = FrameReceiver.received

    def received(self, count):
        if self._prefix:
            raise CloseConnection("a frame without a length")
        original(self, count)

    monkeypatch.setattr(FrameReceiver, "received", received)
    with pytest.raises(NOTICED):
        test_connection.check_answers([b"a", b"b" * 20, b"c"], [7], 8)


def test_f2_answers_overtake_each_other_when_requests_come_together(monkeypatch) -> None:
    original = FrameReceiver.received

    def received(self, count):
        original(self, count)
        self.frames.reverse()

    monkeypatch.setattr(FrameReceiver, "received", received)
    with pytest.raises(NOTICED):
        test_connection.check_answers([b"a", b"b", b"c"], [], 65536)


def test_f5_decoding_takes_ever_longer_for_each_element() -> None:
    def decode(frame: bytes, version: int) -> None:
        until = time.thread_time() + 1.6 * (len(frame) / 1e6) ** 3
        while time.thread_time() < until:
            pass

    with pytest.raises(NOTICED):
        test_hostile.check_that_decoding_is_linear(decode, 2_500)


@pytest.mark.soak
def test_f6_an_unknown_request_is_never_answered(tmp_path, monkeypatch) -> None:
    def unknown(self, *_):
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return Pending(never, lambda outcome: None, True)

    monkeypatch.setattr(dispatch.Dispatcher, "_unknown", unknown)
    monkeypatch.setattr(test_hostile, "CLOSED_WITHIN_SECONDS", 0.3)
    with pytest.raises(NOTICED):
        test_hostile.test_f6_bytes_that_are_not_kafka_close_the_connection(
            tmp_path, test_hostile.framed(struct.pack(">hhih", 999, 0, 1, -1))
        )


def test_f6_an_unknown_version_of_api_versions_closes_the_connection(tmp_path, monkeypatch) -> None:
    original = dispatch.Dispatcher._unknown

    def unknown(self, api_key, version, correlation_id):
        return original(self, api_key if api_key != 18 else 999, version, correlation_id)

    monkeypatch.setattr(dispatch.Dispatcher, "_unknown", unknown)
    with pytest.raises((*NOTICED, CloseConnection)):
        test_versions.test_n1_an_unknown_version_of_api_versions_is_answered_in_version_0(tmp_path)


def test_f7_a_bomb_is_opened_on_the_event_loop(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(produce, "Effort", lambda: None)
    with pytest.raises(NOTICED):
        test_bombs.test_f7_a_bomb_for_a_compacted_topic_is_refused_and_the_loop_goes_on(
            tmp_path, monkeypatch, "zstd"
        )


@pytest.mark.soak
def test_f8_answers_are_made_for_one_that_never_reads(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(limits, "Limits", partial(Limits, unsent_bytes_max=64 << 20))
    with pytest.raises(NOTICED):
        test_hostile.test_f8_a_client_that_never_reads_costs_bounded_memory(tmp_path)


def test_f8_allocation_of_the_announced_length_is_noticed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        FrameReceiver, "_buffer", lambda self: memoryview(bytearray(min(self._announced, 1 << 20)))
    )
    with pytest.raises(NOTICED):
        test_hostile.test_f8_half_frames_and_silence_cost_no_memory_and_are_closed_in_the_end(tmp_path)


@pytest.mark.soak
def test_f8_silent_peers_are_never_closed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Network, "close_idle", lambda self: None)
    monkeypatch.setattr(test_hostile, "CLOSED_WITHIN_SECONDS", 2.5)
    with pytest.raises(NOTICED):
        test_hostile.test_f8_half_frames_and_silence_cost_no_memory_and_are_closed_in_the_end(tmp_path)


@pytest.mark.soak
def test_f9_a_malformed_request_that_blocks_the_loop_is_noticed(tmp_path, monkeypatch) -> None:
    original = dispatch.Dispatcher.__call__

    def answer(self, peer, frame):
        try:
            return original(self, peer, frame)
        except CloseConnection:
            until = time.thread_time() + 0.2
            while time.thread_time() < until:
                pass
            raise

    monkeypatch.setattr(dispatch.Dispatcher, "__call__", answer)
    with pytest.raises(NOTICED):
        test_hostile.test_f9_a_hostile_connection_does_not_make_others_wait(tmp_path)
