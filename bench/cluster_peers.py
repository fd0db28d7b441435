"""The two clusters under comparison: brokers on this machine that can be killed, stopped and started one by one.

Apache Kafka's are combined KRaft nodes; Headrace's are `headrace serve` processes with one ZooKeeper server, whose CPU
time and memory count with theirs.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from bench import raw
from bench.kafka_peer import format_folder, server_command
from bench.peers import HEADRACE, KAFKA
from bench.processes import Server, accepts, answers_metadata, start
from headrace.broker.stores import zookeeper_server
from headrace.protocol.headers import decode_response_header
from headrace.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionData,
    TopicData,
)
from headrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from headrace.protocol.schema import ApiMessage
from simulator.ports import free_port

NODES: Final = 3
DEADLINE_SECONDS: Final = 180.0
_TICK_MS: Final = 500
_QUORUM_VERSION: Final = 1
_METADATA_VERSION: Final = 9
_CREATE_VERSION: Final = 5

Response = TypeVar("Response", bound=ApiMessage)


def wait_until(
    holds: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS, *, pause_seconds: float = 0.05
) -> None:
    """Wait for a condition. Raise RuntimeError if it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {seconds:.0f} s: {what}")
        time.sleep(pause_seconds)


class Cluster:
    """A cluster. `nodes` are the running ones by id, from 1 on. All are on 127.0.0.1; ports stay as long as the
    data.
    """

    name: str

    def __init__(self, work: Path) -> None:
        self._folder = (work / f"cluster-{self.name.split()[-1].lower()}").absolute()
        self._ports: dict[int, int] = {}
        self._settings: dict[str, str] = {}
        self._tree: Path | None = None
        self.nodes: dict[int, Server] = {}

    @property
    def is_running(self) -> bool:
        return bool(self.nodes)

    # -- as a target of loads ------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    @property
    def servers(self) -> list[Server]:
        """All running processes."""
        return list(self.nodes.values())

    def cpu_seconds(self) -> float:
        return sum(server.cpu_seconds() for server in self.servers)

    # -- starting and ending -------------------------------------------------------------------------------

    def start_fresh(self, count: int = NODES, settings: Mapping[str, str] | None = None) -> float:
        """Stop all brokers and start on empty folders; return the seconds until each broker knows all of them.

        Formatting folders and starting ZooKeeper are not counted. `settings` are additional ones.
        """
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._ports = {node: free_port() for node in range(1, count + 1)}
        self._settings = dict(settings or {})
        with ThreadPoolExecutor(count) as threads:
            self._prepare(threads)
            started = time.perf_counter()
            for node, server in zip(self._ports, threads.map(self._start, self._ports), strict=True):
                self.nodes[node] = server
        return time.perf_counter() - started

    def start_node(self, node: int) -> None:
        """Start a node on its data."""
        self.nodes[node] = self._start(node)

    def stop_node(self, node: int, *, kill: bool = False) -> float:
        """End a node by SIGTERM or SIGKILL; return the seconds it took."""
        return self.nodes.pop(node).stop(kill)

    def signal(self, node: int, number: signal.Signals) -> None:
        self.nodes[node].process.send_signal(number)

    def stop(self) -> None:
        nodes, self.nodes = self.nodes, {}
        for server in nodes.values():
            server.stop(kill=True)

    def _start(self, node: int) -> Server:
        folder, port = self._folder / str(node), self._ports[node]
        answers = partial(answers_metadata, brokers=len(self._ports))
        return start(
            f"{self.name} {node}",
            self._command(node, folder, port),
            port,
            folder / "out",
            folder=self._tree,
            answers=answers,
        )

    def _prepare(self, threads: ThreadPoolExecutor) -> None:
        raise AssertionError("abstract")

    def _command(self, node: int, folder: Path, port: int) -> list[str]:
        raise AssertionError("abstract")

    # -- asking --------------------------------------------------------------------------------------------

    def ask(
        self, request: ApiMessage, response: type[Response], version: int, node: int | None = None
    ) -> Response:
        """Ask one broker, by default the first running one."""
        server = self.nodes[node] if node is not None else next(iter(self.nodes.values()))
        with raw.connect(server) as sock:
            sock.settimeout(DEADLINE_SECONDS)
            answer = raw.ask(sock, raw.frame(request, version))
        _, position = decode_response_header(answer, response.header_version(version))
        return response.decode(answer, version, None, position)

    def controller(self) -> int:
        """Return the node of the active controller; wait until there is one."""
        wait_until(lambda: self._controller() in self.nodes, f"{self.name}: there is a controller")
        return self._controller()

    def _controller(self) -> int:
        """Return the controller as the first broker knows it; negative for none."""
        raise AssertionError("abstract")

    def partitions(
        self, *topics: str, node: int | None = None
    ) -> dict[tuple[str, int], MetadataResponsePartition]:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic) for topic in topics], allow_auto_topic_creation=False
        )
        answer = self.ask(request, MetadataResponse, _METADATA_VERSION, node)
        return {
            (topic.name or "", partition.partition_index): partition
            for topic in answer.topics
            for partition in topic.partitions
        }

    def create(self, topic: str, partitions: int, replicas: int = NODES) -> None:
        """Create a topic; return when all replicas are in sync."""
        self._create(
            CreatableTopic(
                name=topic, num_partitions=partitions, replication_factor=replicas, assignments=[], configs=[]
            )
        )
        self.wait_in_sync({topic: partitions}, replicas)

    def create_led_by(self, topic: str, leader: int) -> None:
        """Create a topic of one partition with a replica on each node, led by `leader`."""
        brokers = [leader, *(node for node in self._ports if node != leader)]
        assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=brokers)
        self._create(
            CreatableTopic(
                name=topic, num_partitions=-1, replication_factor=-1, assignments=[assignment], configs=[]
            )
        )
        self.wait_in_sync({topic: 1}, len(brokers))

    def _create(self, topic: CreatableTopic) -> None:
        request = CreateTopicsRequest(topics=[topic], timeout_ms=int(DEADLINE_SECONDS * 1000))
        for told in self.ask(request, CreateTopicsResponse, _CREATE_VERSION).topics:
            if told.error_code:
                raise RuntimeError(f"{self.name}: {topic.name} is not created: {told.error_message}")

    def wait_in_sync(self, topics: Mapping[str, int], replicas: int = NODES) -> None:
        """Wait until these topics have that many partitions, each with a leader and that many replicas in sync."""

        def are() -> bool:
            found = self.partitions(*topics)
            return len(found) == sum(topics.values()) and all(
                partition.leader_id > 0 and len(partition.isr_nodes) == replicas
                for partition in found.values()
            )

        wait_until(are, f"{self.name}: all replicas of {', '.join(topics)} are in sync")

    def leader(self, topic: str) -> int:
        """Return the leader of the topic's partition 0."""
        return self.partitions(topic)[topic, 0].leader_id

    def other_nodes(self, than: Collection[int]) -> list[int]:
        return [node for node in self.nodes if node not in than]


class KafkaCluster(Cluster):
    """Combined nodes of KRaft, all of them voters, configured as the single one of `python -m bench kafka`."""

    name = KAFKA

    def _prepare(self, threads: ThreadPoolExecutor) -> None:
        controllers = {node: free_port() for node in self._ports}
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items())
        replicas = len(self._ports)
        for node, port in self._ports.items():
            folder = self._folder / str(node)
            folder.mkdir()
            listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controllers[node]}"
            (folder / "server.properties").write_text(
                f"""process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners={listeners}
advertised.listeners={listeners}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/data
num.partitions=1
offsets.topic.replication.factor={replicas}
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
                + "".join(f"{name}={value}\n" for name, value in self._settings.items())
            )
        list(threads.map(lambda node: format_folder(self._folder / str(node)), self._ports))

    def _command(self, node: int, folder: Path, port: int) -> list[str]:
        return server_command(folder)

    def _controller(self) -> int:
        request = DescribeQuorumRequest(
            topics=[TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)])]
        )
        answer = self.ask(request, DescribeQuorumResponse, _QUORUM_VERSION)
        return -1 if answer.error_code else answer.topics[0].partitions[0].leader_id


class HeadraceCluster(Cluster):
    """`headrace serve`, and ZooKeeper from pyspark's jars in a process of its own."""

    def __init__(self, work: Path, name: str = HEADRACE, tree: Path | None = None) -> None:
        """Create it, stopped. `tree`: run that working tree's modules."""
        self.name = name
        super().__init__(work)
        self._tree = tree
        self.zookeeper: Server | None = None

    def _prepare(self, threads: ThreadPoolExecutor) -> None:
        folder, port = self._folder / "zookeeper", free_port()
        folder.mkdir()
        settings = folder / "zoo.cfg"
        settings.write_text(zookeeper_server.server_settings(folder, "127.0.0.1", port, _TICK_MS))
        self.zookeeper = start(
            "ZooKeeper",
            zookeeper_server.server_command(settings),
            port,
            self._folder / "zookeeper.out",
            answers=accepts,
        )

    def _command(self, node: int, folder: Path, port: int) -> list[str]:
        if self.zookeeper is None:
            raise RuntimeError("there is no ZooKeeper")
        command = [
            sys.executable,
            "-m",
            "headrace.tablelayer.cli.main",
            "serve",
            "--data",
            str(folder / "data"),
        ]
        command += ["--zookeeper", f"{self.zookeeper.address}/bench", "--listen", f"127.0.0.1:{port}"]
        settings = {"node.id": str(node), "group.initial.rebalance.delay.ms": "0", **self._settings}
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        return command

    @property
    def servers(self) -> list[Server]:
        return super().servers + ([self.zookeeper] if self.zookeeper else [])

    def stop(self) -> None:
        super().stop()
        zookeeper, self.zookeeper = self.zookeeper, None
        if zookeeper is not None:
            zookeeper.stop(kill=True)

    def _controller(self) -> int:
        return self.ask(MetadataRequest(topics=[]), MetadataResponse, _METADATA_VERSION).controller_id
