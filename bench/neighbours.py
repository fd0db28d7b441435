"""The effect of one large request on others: the latency of small requests while a server works at it.

One client asks for the Metadata of one topic every five milliseconds, from a process of its own: first without other
load, then while another client's large request is answered. Requests are encoded before the clock starts.
"""

from __future__ import annotations

import multiprocessing
import time
import uuid
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

from bench import raw
from bench.processes import Server
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

INTERVAL_SECONDS = 0.005
QUIET_SECONDS = 5.0
DEADLINE_SECONDS = 120.0
TOPIC = "neighbour"


def _ask_small(address: tuple[str, int], until: Event, answers: Connection) -> None:
    """Return latencies in ms of small requests, sent every `INTERVAL_SECONDS` or when the one before is answered."""
    import socket

    request = raw.metadata_frame([TOPIC])
    found = []
    with socket.create_connection(address, DEADLINE_SECONDS) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not until.is_set():
            began = time.perf_counter()
            raw.ask(sock, request)
            taken = time.perf_counter() - began
            found.append(taken * 1000)
            time.sleep(max(0.0, INTERVAL_SECONDS - taken))
    answers.send(found)


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _meanwhile(server: Server, request: bytes | None) -> tuple[list[float], float]:
    """Return (latencies in ms of small requests, seconds until the large one was answered; -1 if the server closed)."""
    stop = multiprocessing.Event()
    ours, theirs = multiprocessing.Pipe()
    asking = multiprocessing.Process(target=_ask_small, args=(("127.0.0.1", server.port), stop, theirs))
    asking.start()
    time.sleep(0.3)
    began = time.perf_counter()
    seconds = QUIET_SECONDS
    if request is None:
        time.sleep(QUIET_SECONDS)
    else:
        sock = raw.connect(server)
        sock.settimeout(DEADLINE_SECONDS)
        try:
            raw.ask(sock, request)
            seconds = time.perf_counter() - began
        except (OSError, EOFError, RuntimeError):
            seconds = -1.0
        finally:
            sock.close()
        time.sleep(0.3)
    stop.set()
    if not ours.poll(DEADLINE_SECONDS):
        asking.terminate()
        raise RuntimeError(f"{server.name} does not answer a small request any more")
    found: list[float] = ours.recv()
    asking.join()
    return found, seconds


def large_requests(*, quick: bool) -> dict[str, bytes]:
    """Return large requests by name. Some need the topics that `prepare` creates. Topics that they create have new
    names each time.
    """
    names = uuid.uuid4().hex[:8]
    parts = 20_000 if quick else 100_000
    topics = 2_000 if quick else 20_000
    commits = 20_000 if quick else 500_000
    return {
        "DescribeConfigs of 1,000 topics": raw.frame(
            DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(
                        resource_type=2, resource_name=f"many-{n}", configuration_keys=None
                    )
                    for n in range(1_000)
                ],
                include_synonyms=True,
                include_documentation=False,
            ),
            4,
        ),
        f"ListOffsets of {parts:,} partitions": raw.frame(
            ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    ListOffsetsTopic(
                        name=TOPIC,
                        partitions=[
                            ListOffsetsPartition(partition_index=n, timestamp=-1) for n in range(parts)
                        ],
                    )
                ],
            ),
            5,
        ),
        f"OffsetCommit of {commits:,} partitions": raw.frame(
            OffsetCommitRequest(
                group_id="neighbour",
                generation_id_or_member_epoch=-1,
                member_id="",
                topics=[
                    OffsetCommitRequestTopic(
                        name=TOPIC,
                        partitions=[
                            OffsetCommitRequestPartition(
                                partition_index=n, committed_offset=1, committed_metadata=""
                            )
                            for n in range(commits)
                        ],
                    )
                ],
            ),
            7,
        ),
        f"Metadata that creates {topics:,} topics": raw.frame(
            MetadataRequest(
                topics=[MetadataRequestTopic(name=f"made-{names}-{n}") for n in range(topics)],
                allow_auto_topic_creation=True,
            ),
            8,
        ),
    }


def prepare(server: Server) -> None:
    """Create the topics that the requests name."""
    names = [TOPIC, *(f"many-{n}" for n in range(1_000))]
    for start in range(0, len(names), 250):
        with raw.connect(server) as sock:
            sock.settimeout(DEADLINE_SECONDS)
            raw.ask(
                sock,
                raw.frame(
                    CreateTopicsRequest(
                        topics=[
                            CreatableTopic(
                                name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
                            )
                            for name in names[start : start + 250]
                        ],
                        timeout_ms=60_000,
                    ),
                    4,
                ),
            )


def measure(server: Server, *, quick: bool) -> Iterator[tuple[str, float]]:
    """Yield (figure, value): the seconds of each large request, and the p99 of small ones without and beside it, in
    ms.
    """
    prepare(server)
    _meanwhile(server, None)
    for name, request in large_requests(quick=quick).items():
        quiet, _ = _meanwhile(server, None)
        beside, seconds = _meanwhile(server, request)
        yield f"{name}, s (-1: closed)", seconds
        yield f"… {name}: p99 of others before, ms", _percentile(quiet, 0.99)
        yield f"… {name}: p99 of others meanwhile, ms", _percentile(beside, 0.99)
        yield f"… {name}: longest of others, ms", max(beside)
