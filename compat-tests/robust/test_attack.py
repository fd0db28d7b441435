"""A broker under attacks of every kind at once, beside a legitimate load: acknowledged records stay, and answers are
quick.

The attackers are a process of their own (`attackers.py`). They attack in turns, so that the same load is measured with
and without them. Server, load and attackers share the cores of one machine, but only the server is to be measured. So
in the soak server and load run before everything else (`before_others`), and the attackers burn as much processor time
in turns without attacks as in turns with them. Beside the clients' times, the test prints the server's own measure of
its event loop's turns, and the processor time in them.

HEADRACE_ATTACK_SECONDS is the duration of `make soak` (an hour), HEADRACE_SOAK_SEED its seed, HEADRACE_ATTACK_TIMES a
factor for the number of attacks. Only the soak judges the figures.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from prometheus_client.parser import text_string_to_metric_families
from robust import attackers

from conftest import ROOT, ServerProcess, _environment
from simulator.certificates import identity
from simulator.ports import free_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="attackers come from 127.0.0.2 and so on")

SOAK_SECONDS = float(os.environ.get("HEADRACE_ATTACK_SECONDS", "3600"))
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "1"))
P99_RATIO_MAX = 2.0
MEMORY_RATIO_MAX = 1.10
LINES_A_MINUTE_MAX = 500
"""Limit of each log: twenty-one lines of each kind, and there are about twenty kinds."""
TURNS = ("headrace_event_loop_turn_seconds", "headrace_event_loop_turn_cpu_seconds")
TOPIC, PARTITIONS, GROUP = attackers.SOMEBODY_ELSES, 3, "legal-readers"
PASSWORDS = {"admin": "admin-secret", "ann": "ann-secret", attackers.EVE: attackers.EVES_PASSWORD}
OTHER_TOPICS = 300
ANSWER_SECONDS_MAX = 60


class Attacked(ServerProcess):
    """A server with a plain listener and one with TLS and passwords."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tls_port, metrics_port = free_port(), free_port()
        self.metrics = f"http://127.0.0.1:{metrics_port}/metrics"
        self._metrics_address = f"127.0.0.1:{metrics_port}"
        authority = identity("authority")
        identity("localhost", authority, rsa_bits=2048).write(folder, "server")
        (folder / "ca.pem").write_text(authority.certificate_pem)
        users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
        (folder / "server.properties").write_text(
            f"""
listeners=PLAINTEXT://127.0.0.1:{self.port},SASL_SSL://127.0.0.1:{self.tls_port}
ssl.keystore.type=PEM
ssl.keystore.location={folder}/server.pem
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required {users};
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
authorizer.audit.log.file={folder}/audit.jsonl
super.users=User:admin
"""
        )

    def arguments(self) -> list[str]:
        return ["--config", str(self.directory / "server.properties"), "--metrics", self._metrics_address]

    def client(self, user: str, **more: object) -> dict[str, object]:
        config = {
            "bootstrap.servers": f"localhost:{self.tls_port}",
            "broker.address.family": "v4",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.directory / "ca.pem"),
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
        }
        return {**config, **{name.replace("_", "."): value for name, value in more.items()}}

    def prepare(self) -> None:
        """Create topics, users and rights."""
        admin = AdminClient(self.client("admin"))
        topics = [
            NewTopic(TOPIC, PARTITIONS, 1),
            NewTopic(attackers.EVES_TOPIC, 1, 1, config={"cleanup.policy": "compact"}),
            *(NewTopic(f"other-{number}", 2, 1) for number in range(OTHER_TOPICS)),
        ]
        rights = [
            ("ann", ResourceType.TOPIC, TOPIC),
            ("ann", ResourceType.GROUP, GROUP),
            (attackers.EVE, ResourceType.TOPIC, attackers.EVES_TOPIC),
        ]
        acls = [
            AclBinding(
                kind,
                name,
                ResourcePatternType.LITERAL,
                f"User:{who}",
                "*",
                AclOperation.ALL,
                AclPermissionType.ALLOW,
            )
            for who, kind, name in rights
        ]
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        carl = UserScramCredentialUpsertion("carl", credential, b"carl-secret")
        waiting = [
            *admin.create_topics(topics).values(),
            *admin.create_acls(acls).values(),
            *admin.alter_user_scram_credentials([carl]).values(),
        ]
        for each in waiting:
            each.result(ANSWER_SECONDS_MAX)

    @property
    def resident_megabytes(self) -> float:
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Measures:
    """The server's histograms of its event loop, added up by phase of the load."""

    def __init__(self, server: Attacked) -> None:
        self._server = server
        self._last: Counter[tuple[str, float]] = Counter()
        self._found: dict[str, Counter[tuple[str, float]]] = defaultdict(Counter)
        self.mark("")

    def mark(self, phase: str) -> None:
        """Count everything since the last call for that phase."""
        with urllib.request.urlopen(self._server.metrics, timeout=ANSWER_SECONDS_MAX) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        now = Counter(
            {
                (family.name, float(sample.labels["le"])): int(sample.value)
                for family in families
                if family.name in TURNS
                for sample in family.samples
                if sample.name.endswith("_bucket")
            }
        )
        self._found[phase].update(now - self._last)
        self._last = now

    def count(self, phase: str, name: str) -> int:
        return self._found[phase][name, math.inf]

    def quantile_ms(self, phase: str, part: float, name: str) -> float:
        """Return a quantile, with the values of a bucket spread evenly."""
        found = sorted((bound, count) for (each, bound), count in self._found[phase].items() if each == name)
        wanted, below, low = part * self.count(phase, name), 0, 0.0
        for bound, count in found:
            if count >= wanted and count > below:
                return 1000 * (
                    low + (min(bound, 10 * low or bound) - low) * (wanted - below) / (count - below)
                )
            below, low = count, bound
        return math.nan


class Legitimate:
    """A writer, a reader of its records, and a client that asks for metadata; the duration of each request, by
    phase.
    """

    def __init__(self, server: Attacked) -> None:
        self.phase = "before"
        self.seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.failures: list[BaseException] = []
        self._server = server
        self._stop = threading.Event()
        work = (self._write, self._read, self._ask)
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in work]

    def __enter__(self) -> Legitimate:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(ANSWER_SECONDS_MAX)

    def check(self) -> None:
        assert not self.failures, self.failures

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the test tells it
            self.failures.append(error)

    def _write(self) -> None:
        producer = Producer(self._server.client("ann", linger_ms=0, acks="all"))
        told: list[float] = []

        def acknowledged(error: object, message: object) -> None:
            if error is not None:
                raise KafkaException(error)
            self.acknowledged[message.partition(), message.offset()] = message.value()  # type: ignore[attr-defined]
            told.append(time.perf_counter())

        number = 0
        while not self._stop.wait(0.01):
            began, phase = time.perf_counter(), self.phase
            producer.produce(
                TOPIC, f"{number} {began!r}".encode(), partition=number % PARTITIONS, on_delivery=acknowledged
            )
            number += 1
            while not told:
                producer.poll(ANSWER_SECONDS_MAX)
            self.seconds["produce", phase].append(told.pop() - began)

    def _read(self) -> None:
        config = self._server.client(
            "ann", group_id=GROUP, auto_offset_reset="earliest", fetch_wait_max_ms=500
        )
        consumer = Consumer(config)
        consumer.subscribe([TOPIC])
        while not self._stop.is_set():
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                raise KafkaException(message.error())
            written = float(message.value().split()[1])
            self.seconds["consume", self.phase].append(time.perf_counter() - written)
        consumer.close()

    def _ask(self) -> None:
        admin = AdminClient(self._server.client("ann"))
        while not self._stop.wait(0.02):
            began, phase = time.perf_counter(), self.phase
            admin.list_topics(TOPIC, ANSWER_SECONDS_MAX)
            self.seconds["metadata", phase].append(time.perf_counter() - began)

    def p99_ms(self, kind: str, phase: str) -> float:
        found = sorted(self.seconds[kind, phase])
        return 1000 * found[len(found) * 99 // 100] if found else float("nan")


class Attacking:
    """The process of the attackers."""

    def __init__(self, server: Attacked, seed: int, *, burn: bool) -> None:
        """Start them. `burn`: they use the processor in the pauses, too."""
        ports = (str(server.port), str(server.tls_port))
        command = [sys.executable, attackers.__file__, *ports, str(seed), *(["burn"] if burn else [])]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.told: dict[str, Any] = {}

    def go(self) -> None:
        self._say("go")

    def stop(self) -> None:
        self._say("stop")
        assert self._process.stdout is not None
        self.told = json.loads(self._process.stdout.readline())

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(ANSWER_SECONDS_MAX)


def attack(
    server: Attacked, seconds: float, phase_seconds: float, seed: int, *, burn: bool = False
) -> tuple[Legitimate, float]:
    """Run the load; return it and the growth of memory since a twelfth of the time.

    On a busy machine a first turn is over before each kind of attack has reached its maximum.
    """
    server.prepare()
    attacking = Attacking(server, seed, burn=burn)
    measures = Measures(server)
    began = time.monotonic()
    turns, megabytes, warm = 0, [], 0.0
    with Legitimate(server) as legitimate:
        while not turns or time.monotonic() - began < seconds:
            legitimate.phase = "quiet" if turns else "warming"
            time.sleep(phase_seconds)
            legitimate.check()
            measures.mark(legitimate.phase)
            legitimate.phase = "attacked" if turns else "warming"
            attacking.go()
            time.sleep(phase_seconds)
            attacking.stop()
            measures.mark(legitimate.phase)
            legitimate.check()
            turns += 1
            megabytes.append(server.resident_megabytes)
            if not warm and time.monotonic() - began >= seconds / 12:
                warm = megabytes[-1]
    attacking.end()
    legitimate.check()
    megabytes.append(server.resident_megabytes)
    print(f"seed {seed}: {turns} turns of {phase_seconds:g} s without and with attacks")
    print(f"attacks: {attacking.told['made']}; they took {attacking.told['core']:.2f} of a core")
    for kind in ("produce", "consume", "metadata"):
        quiet, attacked = (legitimate.p99_ms(kind, phase) for phase in ("quiet", "attacked"))
        count = len(legitimate.seconds[kind, "attacked"])
        ratio = attacked / quiet
        print(f"{kind}: p99 {quiet:.1f} ms, {attacked:.1f} ms under attack ({ratio:.2f} x, {count} of them)")
    for name in TURNS:
        for part in (0.5, 0.99, 0.999):
            quiet, attacked = (measures.quantile_ms(each, part, name) for each in ("quiet", "attacked"))
            counts = ", ".join(str(measures.count(each, name)) for each in ("quiet", "attacked"))
            print(f"{name} ({counts}): {100 * part:g} %: {quiet:.2f} ms, {attacked:.2f} ms under attack")
    print(f"memory, MB, turn by turn: {' '.join(f'{each:.0f}' for each in megabytes)}; from {warm:.0f}")
    assert not attacking.told["odd"], attacking.told["odd"]
    assert set(attacking.told["made"]) == set(attackers.PER_SECOND), "all kinds were there"
    check_records(server, legitimate)
    check_logs(server, time.monotonic() - began)
    return legitimate, megabytes[-1] / warm


def check_records(server: Attacked, legitimate: Legitimate) -> None:
    """Check that all acknowledged records are read back, at their offsets."""
    consumer = Consumer(server.client("ann", group_id=GROUP, enable_auto_commit=False))
    ends = [
        consumer.get_watermark_offsets(TopicPartition(TOPIC, index), ANSWER_SECONDS_MAX)[1]
        for index in range(PARTITIONS)
    ]
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    found: dict[tuple[int, int], bytes] = {}
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while len(found) < sum(ends) and time.monotonic() < deadline:
        for message in consumer.consume(1000, 1):
            assert message.error() is None
            found[message.partition(), message.offset()] = message.value()
    consumer.close()
    assert len(found) == sum(ends) >= len(legitimate.acknowledged) > 0
    lost = [place for place, value in legitimate.acknowledged.items() if found.get(place) != value]
    assert not lost, lost[:10]


def check_logs(server: Attacked, seconds: float) -> None:
    """Check that the logs have no failure of the server, and at most the lines that attackers may cause."""
    lines_max = LINES_A_MINUTE_MAX * (1 + seconds / 60)
    for path in (server.directory / "server.log", server.directory / "data" / "headrace.log"):
        text = path.read_text()
        assert "Traceback" not in text, text[text.index("Traceback") - 1000 :][:3000]
        assert text.count("\n") <= lines_max, path
    assert "more lines of this kind" in server.log() or seconds < 120, (
        "omitted lines are not counted in the log"
    )


@contextlib.contextmanager
def before_others(server: Attacked) -> Iterator[None]:
    """Run server and load before all other processes (SCHED_RR), where that is allowed; the load first, which works
    in short bursts.
    """
    assert server.process is not None
    threads = [int(each.name) for each in Path(f"/proc/{server.process.pid}/task").iterdir()]
    try:
        for thread, priority in (*((each, 1) for each in threads), (0, 2)):
            os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(priority))
    except PermissionError:
        print("server and load take turns with whatever else wants a core: measure on a quiet machine")
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@pytest.fixture
def attacked(tmp_path):
    server = Attacked(tmp_path)
    server.start()
    yield server
    assert server.stop() == 0


@pytest.mark.slow
def test_acknowledged_records_survive_an_attack_and_the_log_file_stays_short(attacked) -> None:
    attack(attacked, 0, 8, SEED)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_legitimate_load_is_served_under_attack_as_without(attacked) -> None:
    phase_seconds = min(30.0, SOAK_SECONDS / 8)
    with before_others(attacked):
        legitimate, grown = attack(attacked, SOAK_SECONDS, phase_seconds, SEED, burn=True)
    for kind in ("produce", "consume", "metadata"):
        ratio = legitimate.p99_ms(kind, "attacked") / legitimate.p99_ms(kind, "quiet")
        assert ratio < P99_RATIO_MAX, f"{kind}: {ratio:.2f} x"
    assert grown < MEMORY_RATIO_MAX, f"{grown:.2f} x"
