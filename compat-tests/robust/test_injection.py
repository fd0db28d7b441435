"""A real server whose system calls fail or kill it at chosen places, by `strace`: no test hooks, the exact call."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from fault_load import CONNECTION, Load, create_topic, read_all

from simulator.histories import told

STRACE = shutil.which("strace")
WRITES = "pwritev,pwritev2,pwrite64"
ATTACH_SECONDS = 60

pytestmark = pytest.mark.skipif(STRACE is None, reason="needs strace")


class Injection:
    """`strace` on a running server until the block ends. `where`: only calls on this file or folder."""

    def __init__(self, server, calls: str, fault: str, where: Path | None = None) -> None:
        self.server = server
        self.record = server.directory / f"strace-{time.monotonic_ns()}.txt"
        self._command = [STRACE, "-f", "-p", str(server.process.pid), "-o", str(self.record)]
        self._command += ["-e", f"trace={calls}", "-e", f"inject={calls}:{fault}"]
        self._command += [] if where is None else ["-P", str(where)]

    def __enter__(self) -> Injection:
        self._process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        tracer = Path(f"/proc/{self.server.process.pid}/task")
        deadline = time.monotonic() + ATTACH_SECONDS
        while not all(map(is_traced, tracer.iterdir())):
            if self._process.poll() is not None:
                pytest.skip(f"strace cannot attach here: {self._process.stderr.read()}")
            assert time.monotonic() < deadline, "strace did not attach"
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        self._process.wait(60)
        self._process.stderr.close()

    @property
    def injected(self) -> int:
        return self.record.read_text().count("(INJECTED")


def is_traced(thread: Path) -> bool:
    """Return whether it is traced, or gone."""
    try:
        return "TracerPid:\t0\n" not in (thread / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def send(address: str, topic: str, partition: int, seconds: float = 30) -> KafkaError | None:
    """Send one record without retries; return None if it was acknowledged."""
    outcome: list[KafkaError | None] = []
    producer = Producer(
        {
            **CONNECTION,
            "bootstrap.servers": address,
            "message.timeout.ms": int(seconds * 1000),
            "retries": 0,
        }
    )
    producer.produce(topic, b"probe", partition=partition, on_delivery=lambda error, _: outcome.append(error))
    producer.flush(seconds + 5)
    return outcome[0]


def file_of(server, topic: str, partition: int) -> Path:
    (path,) = (server.directory / "data" / f"{topic}-{partition}").glob("*.log")
    return path


def topic_with_records(server, unique, **config: str) -> str:
    topic = unique("topic")
    create_topic(server.address, topic, **config)
    for partition in (0, 1):
        assert send(server.address, topic, partition) is None
    return topic


def check_after(server, topic: str, count: dict[int, tuple[int, int]]) -> None:
    """Restart, and check that each partition has between `least` and `most` records and accepts more."""
    server.restart()
    offsets: dict[int, list[int]] = {0: [], 1: []}
    for poll in read_all(server.address, topic, "after"):
        offsets[poll.place[1]].append(poll.offset)
    for partition, (least, most) in count.items():
        assert least <= len(offsets[partition]) <= most
        assert offsets[partition] == list(range(len(offsets[partition])))
        assert send(server.address, topic, partition) is None


def eio_of_fsync(server, unique, which: str) -> None:
    topic = topic_with_records(server, unique, durability="power")
    log = file_of(server, topic, 0)
    config = {"data": log, "folder": log.parent}
    if which == "folder":
        # The next batch begins a segment, so that a new name must become durable.
        entry = ConfigEntry("segment.bytes", "100", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("topic", topic, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": server.address})
        admin.incremental_alter_configs([resource])[resource].result(20)
    with Injection(server, "fsync", "error=EIO", config[which]) as injection:
        for _ in range(3):
            error = send(server.address, topic, 0)
            assert error is not None
            assert error.code() in (KafkaError.KAFKA_STORAGE_ERROR, KafkaError._MSG_TIMED_OUT), error
            assert send(server.address, topic, 1) is None, "another partition is not concerned"
        assert injection.injected == 1, "an fsync that failed is not tried again"
    error = send(server.address, topic, 0)
    assert error is not None, "it stays offline although the disk works again"
    assert "is offline" in (server.directory / "data" / "headrace.log").read_text()
    check_after(server, topic, {0: (1, 2), 1: (4, 4)})


def failing_writes(server, unique, error: str) -> None:
    topic = topic_with_records(server, unique)
    with Injection(server, WRITES, f"error={error}", file_of(server, topic, 0)) as injection:
        for _ in range(3):
            refused = send(server.address, topic, 0)
            assert refused is not None
            assert refused.code() in (KafkaError.KAFKA_STORAGE_ERROR, KafkaError._MSG_TIMED_OUT), refused
            assert send(server.address, topic, 1) is None, "another partition is not concerned"
        assert injection.injected >= 3
    assert send(server.address, topic, 0) is None, "it goes on when the disk works again"
    check_after(server, topic, {0: (2, 2), 1: (4, 4)})


def killed_at(server, unique, calls: str, when: int, *, of_the_log: bool = True) -> None:
    plain, transactional = unique("plain"), unique("tx")
    create_topic(server.address, transactional, durability="power")
    # Segments are replaced often if the renames of their indexes and snapshots matter.
    small = {} if of_the_log else {"segment.bytes": "20000"}
    create_topic(server.address, plain, durability="power", **small)
    where = server.directory / "data" / f"{plain}-0" / f"{0:020}.log" if of_the_log else None
    with Load(server.address, plain=plain, transactional=transactional) as load:
        load.wait_for_more(10)
        with Injection(server, calls, f"signal=KILL:when={when}", where):
            server.process.wait(30)
        server.restart()
        load.wait_for_more(50)
    assert not (problems := load.problems()), told(problems)


def slow_fsyncs(server, unique) -> None:
    """Forty connections on a disk that takes 50 ms share fsyncs."""
    topic = topic_with_records(server, unique, durability="power")
    producers = [
        Producer({**CONNECTION, "bootstrap.servers": server.address, "linger.ms": 0}) for _ in range(40)
    ]
    acknowledged: list[int] = []
    for producer in producers:
        producer.produce(topic, b"warm", partition=1)
        assert producer.flush(60) == 0
    with Injection(server, "fsync", "delay_exit=50000", file_of(server, topic, 0)) as injection:
        for producer in producers:
            for _ in range(5):
                producer.produce(
                    topic, b"x", partition=0, on_delivery=lambda error, _: acknowledged.append(error is None)
                )
        for producer in producers:
            assert producer.flush(60) == 0
    assert sum(acknowledged) == 200
    assert injection.injected <= 60, "batches share their fsyncs"


PLACEMENTS = {
    "fsync of the log fails": lambda s, u: eio_of_fsync(s, u, "data"),
    "fsync of the folder fails": lambda s, u: eio_of_fsync(s, u, "folder"),
    "no space": lambda s, u: failing_writes(s, u, "ENOSPC"),
    "writes fail": lambda s, u: failing_writes(s, u, "EIO"),
    "killed in an fsync": lambda s, u: killed_at(s, u, "fsync", 5),
    "killed in a write": lambda s, u: killed_at(s, u, WRITES, 7),
    "killed in a rename": lambda s, u: killed_at(s, u, "rename,renameat,renameat2", 3, of_the_log=False),
    "slow fsyncs": slow_fsyncs,
}
QUICK = ("fsync of the log fails", "no space")


@pytest.mark.one_process("faults in its system calls")
@pytest.mark.slow
@pytest.mark.parametrize("placement", QUICK)
def test_d4_d5_placements(own_server, unique, placement) -> None:
    PLACEMENTS[placement](own_server, unique)


@pytest.mark.one_process("faults in its system calls")
@pytest.mark.soak
@pytest.mark.timeout(180)
@pytest.mark.parametrize("placement", [name for name in PLACEMENTS if name not in QUICK])
def test_d3_d4_d5_more_placements(own_server, unique, placement) -> None:
    PLACEMENTS[placement](own_server, unique)
