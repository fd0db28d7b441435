"""The steps of `make demo` on a ZooKeeper and three brokers in the place of one server (`make demo BROKERS=3`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from examples.access import ADMIN
from examples.cluster import Cluster
from examples.demo.steps import AWAY_S, TABLE, Demo, Victim
from examples.server import Server
from headrace import connect


@dataclass
class DemoOnBrokers(Demo):
    """`Demo` with three replicas of everything. The leader of the table's first bucket is killed."""

    cluster: Cluster = field(init=False)

    def start_server(self) -> None:
        self.cluster = Cluster.of_three(self.work, self.configurations(), self.access)
        zookeeper = self.cluster.zookeeper
        self.stage.command(["headrace", *zookeeper.words()])
        for number, server in self.cluster.servers.items():
            where = (
                f"--listen {server.address}" if server.config is None else f"--config {server.config.name}"
            )
            shown = f"serve {where} --data data{number} --zookeeper {zookeeper.address}/headrace"
            self.stage.command(["headrace", shown, f"--set node.id={number} ..."])
        begun = time.monotonic()
        for line in self.cluster.start().splitlines():
            self.stage.say(f"[bold]{line}[/]")
        self.client = connect(self.settings(ADMIN))
        self.stage.say(
            f"three brokers, broker {self.cluster.controller(self.client)} is the controller,"
            f" {time.monotonic() - begun:.1f} s"
        )

    @property
    def address(self) -> str:
        return self.cluster.address

    def servers(self) -> list[Server]:
        return list(self.cluster.servers.values())

    def victim(self) -> Victim:
        leaders = self.connection.kafka.describe_topic(TABLE).leaders
        number = leaders[0]
        led = {bucket for bucket, leader in leaders.items() if leader == number}
        return Victim(f"broker {number}, leader of bucket 0,", self.cluster.servers[number], led)

    def come_back(self, victim: Victim, until_the_next_row: Callable[[], None]) -> None:
        """Other brokers lead meanwhile: the next row needs two of three."""
        until_the_next_row()
        time.sleep(AWAY_S)
        self.stage.say(f"[bold]{victim.server.start()}[/]")
        seconds = self.cluster.wait_in_sync(self.connection)
        self.stage.say(f"all replicas in sync again {seconds:.1f} s later")

    def stop_server(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.stop()
