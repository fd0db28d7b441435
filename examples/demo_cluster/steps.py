"""The steps of `make demo-cluster`: those of `make demo`, on three brokers."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb

from examples import server as processes
from examples.cluster import BROKERS
from examples.demo.brokers import DemoOnBrokers
from examples.demo.pipeline import Pipeline
from examples.demo.steps import LATE_ORDERS, TABLE
from examples.demo_cluster.probes import Asker, Feeder, Follower, Waits
from examples.server import ROOT
from examples.stage import StepFailedError
from headrace.tablelayer.spark.sessions import activate

WORK = ROOT / ".demo" / "cluster"
SCALE_FACTOR = "0.05"
ORDERS_PER_SECOND = 200.0
CALM_S = 2.0
"""Between one event and the next."""
KEYS_ASKED_FOR = 32
NOT_STARTED_IN_TIME = "Python worker failed to connect back"
"""Spark's message if the process that plans a Python source's stream needs more than ten seconds to start, on a
busy machine. The stream loses nothing."""


@dataclass
class Event:
    """An event of the cluster, with times on the monotonic clock."""

    what: str
    begun: float
    ended: float
    note: str = ""


@dataclass
class ClusterDemo(DemoOnBrokers):
    """`Demo` with more kills and more clients."""

    work: Path = WORK
    scale: str = SCALE_FACTOR
    events: list[Event] = field(default_factory=list)
    feeder: Feeder | None = None
    follower: Follower | None = None
    asker: Asker | None = None
    sums: Any = None
    tierer: Any = None

    # ---- 1 to 3: a cluster with data in it

    def create_tables(self) -> None:
        super().create_tables()
        self.command("sql", "--server", self.address, "-f", str(Path(__file__).parent / "tables.sql"))
        placed = [each for each in self.connection.kafka.placements() if each.topic.startswith("shop.")]
        leading = {each.replicas[0] for each in placed}
        self.stage.check(
            "each bucket has three replicas, and all brokers lead some",
            all(len(set(each.replicas)) == len(BROKERS) for each in placed) and leading == set(BROKERS),
            f"{len(placed)} buckets",
        )

    def first_orders(self) -> list[bytes]:
        return self.orders[: len(self.orders) // 3]

    # ---- 4: everything runs

    def run_all(self) -> None:
        begun = len(self.first_orders())
        self.pipeline = Pipeline(
            self.spark, self.settings("pipeline"), self.access.spark("pipeline"), self.work / "checkpoint"
        )
        self.pipeline.start()
        self.sums = self.start_sums()
        table = self.connection.table(TABLE)
        self.follower = Follower(self.address, "shop.orders", "order_key")
        self.follower.start()
        with self.stage.progress("enriching", begun) as show:
            self.pipeline.wait(table.count, begun // 2, show)
        fed = self.orders[begun:-LATE_ORDERS]
        self.feeder = Feeder(self.address, "shop.orders", fed, ORDERS_PER_SECOND)
        self.asker = Asker(self.address, TABLE, "order_key", self.keys[:KEYS_ASKED_FOR])
        for each in (self.feeder, self.asker):
            each.start()
        words = ("tier", "--server", self.address, "--interval", "2")
        self.stage.command(["headrace", *words])
        self.tierer = processes.start(*words)
        self.stage.say(
            "from here on go: a producer, a consumer group, lookups, two streams of Spark, and the tiering job"
        )

    def start_sums(self) -> Any:
        """Orders as the data source's stream, into sums by clerk, exactly once."""
        activate(self.spark)
        source = (
            self.spark.readStream.format("headrace")
            .option("bootstrap.servers", self.address)
            .option("table", "shop.orders")
            .load()
            .selectExpr("clerk", "CAST(total_price AS DECIMAL(25, 2)) AS revenue", "1L AS orders")
        )
        return (
            source.writeStream.format("headrace")
            .option("bootstrap.servers", self.address)
            .option("table", "shop.clerks")
            .option("checkpointLocation", str(self.work / "checkpoint-sums"))
            .trigger(processingTime="2 seconds")
            .start()
        )

    def keep_sums(self) -> bool:
        """Start the stream of sums again if Spark gave it up. Return whether it did."""
        if NOT_STARTED_IN_TIME not in str(self.sums.exception()):
            return False
        self.stage.say("a Python process of Spark's did not start in time: the stream of sums starts again")
        self.sums = self.start_sums()
        return True

    def drain_sums(self) -> None:
        """Wait until all streams have read everything."""
        while True:
            try:
                self.sums.processAllAvailable()
                break
            except Exception:
                if not self.keep_sums():
                    raise
        self.sums.stop()

    # ---- 5 to 7: what happens to brokers

    def event(self, what: str, body: Callable[[], str]) -> None:
        """Cause an event, wait until all is in sync again, and a little longer."""
        begun = time.monotonic()
        note = body()
        self.cluster.wait_in_sync(self.connection)
        ended = time.monotonic()
        self.events.append(Event(what, begun, ended, note))
        self.stage.say(f"[bold red]{what}[/]: in sync again after {ended - begun:.1f} s; {note}")
        self.check_alive()
        time.sleep(CALM_S)

    def check_alive(self) -> None:
        """Raise the exception of a client that ended too early."""
        assert self.pipeline is not None
        if NOT_STARTED_IN_TIME in str(self.sums.exception()):
            self.stage.say(
                "Spark gave a Python process its ten seconds to start; the stream of sums starts again"
            )
            self.sums = self.start_sums()
        for query in (self.pipeline.query, self.sums):
            if query.exception() is not None or not query.isActive:
                raise StepFailedError(f"a stream of Spark died: {str(query.exception())[:3000]}")
        for probe in (self.feeder, self.follower, self.asker):
            if probe is not None and probe.error is not None:
                probe.stop()
        if self.tierer is not None and self.tierer.poll() is not None:
            raise StepFailedError(f"the tiering job ended: {self.tierer.communicate()[0][-2000:]}")

    def kill_leader(self) -> None:
        """A job of Spark writes meanwhile."""
        controller = self.cluster.controller(self.connection)
        leaders = self.connection.kafka.describe_topic(TABLE).leaders
        bucket, victim = next((bucket, who) for bucket, who in leaders.items() if who != controller)
        writing = threading.Thread(target=self.copy_customers)
        writing.start()
        time.sleep(1.0)
        self.event(f"kill -9 of broker {victim}, leader of bucket {bucket}", lambda: self.kill(victim))
        writing.join()
        count, expected = (
            self.connection.table(f"shop.{name}").count() for name in ("customer_copy", "customer")
        )
        self.stage.check(
            "a Spark job that wrote meanwhile wrote each row once", count == expected, f"{count:,} rows"
        )

    def copy_customers(self) -> None:
        activate(self.spark)
        rows = (
            self.spark.read.format("headrace")
            .option("bootstrap.servers", self.address)
            .option("table", "shop.customer")
            .load()
        )
        (
            rows.write.format("headrace")
            .option("bootstrap.servers", self.address)
            .option("table", "shop.customer_copy")
            .mode("append")
            .save()
        )

    def kill(self, number: int) -> str:
        """kill -9, and started again a little later."""
        server = self.cluster.servers[number]
        server.kill()
        time.sleep(3.0)
        server.start()
        return ""

    def kill_controller(self) -> None:
        victim = self.cluster.controller(self.connection)

        def body() -> str:
            self.kill(victim)
            return f"broker {self.cluster.controller(self.connection)} is the controller now"

        self.event(f"kill -9 of broker {victim}, the controller", body)

    def kill_follower(self) -> None:
        found = self.connection.kafka.describe_cluster()
        victim = min(
            (each for each in found.brokers if each.broker_id != found.controller),
            key=lambda each: each.partitions_led,
        )
        number = victim.broker_id
        self.event(
            f"kill -9 of broker {number}, a follower (it leads {victim.partitions_led})",
            lambda: self.kill(number),
        )

    def roll(self) -> None:
        for number, server in self.cluster.servers.items():

            def body(server: processes.Server = server) -> str:
                server.stop()
                server.start()
                return ""

            self.event(f"restart of broker {number}", body)

    def replace_broker(self) -> None:
        added, drained = max(BROKERS) + 1, BROKERS[0]

        def add() -> str:
            self.cluster.add(added).start()
            return self.run_cluster("rebalance").splitlines()[-1]

        def drain() -> str:
            said = self.run_cluster("drain", str(drained))
            self.cluster.servers.pop(drained).stop()
            return said.splitlines()[-1]

        self.event(f"broker {added} added", add)
        self.event(f"broker {drained} drained and stopped", drain)

    def run_cluster(self, *words: str) -> str:
        self.stage.command(["headrace", "cluster", *words])
        return self.command("cluster", *words, "--server", self.address, timeout_s=300)

    # ---- 8 to 10: what is left

    def settle(self) -> None:
        """End the load and check its results."""
        assert self.pipeline is not None
        assert self.feeder is not None
        assert self.follower is not None
        assert self.asker is not None
        self.feeder.stop()
        self.asker.stop()
        target = len(self.orders) - LATE_ORDERS
        table = self.connection.table(TABLE)
        with self.stage.progress("enriching", target) as show:
            self.pipeline.wait(table.count, target, show)
        self.pipeline.drain()
        self.drain_sums()
        deadline = time.monotonic() + 60
        while len(self.follower.seen) < target and time.monotonic() < deadline:
            time.sleep(0.1)
        self.follower.stop()
        self.show_waits()
        self.stage.check(
            "all orders that were acknowledged are in their table, once",
            self.connection.table("shop.orders").count() == target
            and self.feeder.acknowledged == target - len(self.first_orders()),
            f"{self.feeder.acknowledged:,} sent one by one meanwhile",
        )
        self.stage.check(
            "the consumer group saw every order",
            len(self.follower.seen) == target,
            f"{self.follower.again:,} again",
        )
        self.stage.check(
            "no row vanished from lookups",
            self.asker.vanished == 0,
            f"{len(self.asker.waits.seconds):,} lookups",
        )
        self.stage.check("every order is enriched, once", table.count() == target, f"{target:,} rows")
        self.check_sums(target)

    def show_waits(self) -> None:
        assert self.feeder is not None
        assert self.follower is not None
        assert self.asker is not None
        probes: list[Waits] = [self.feeder.waits, self.follower.waits, self.asker.waits]

        def row(what: str, since: float, until: float, took: str) -> list[str | None]:
            found = [waits.longest(since, until) for waits in probes]
            return [what, *(None if each is None else f"{each:.2f}" for each in found), took]

        self.stage.rows(
            ["what", "producer waited, s", "consumer", "lookups", "in sync again"],
            [
                row(each.what, each.begun, each.ended, f"{each.ended - each.begun:.1f}")
                for each in self.events
            ],
            title="the longest wait of each kind of client during each event",
        )

    def check_sums(self, target: int) -> None:
        rows = self.connection.table("shop.clerks").to_arrow().to_pylist()
        ours = {row["clerk"]: (row["revenue"], row["orders"]) for row in rows}
        with duckdb.connect() as database:
            found = database.execute(
                f"SELECT o_clerk, sum(o_totalprice), count(*) FROM (SELECT * FROM '{self.truth.folder}/orders.parquet'"
                f" LIMIT {target}) GROUP BY ALL"
            ).fetchall()
        theirs = {clerk: (Decimal(revenue), count) for clerk, revenue, count in found}
        self.stage.check(
            "Spark's sums by clerk are DuckDB's: each order went in exactly once",
            ours == theirs,
            f"{len(ours)} clerks",
        )

    def tier(self) -> None:
        self.tierer.send_signal(signal.SIGINT)
        said = self.tierer.communicate(timeout=60)[0]
        self.tierer = None
        for line in said.strip().splitlines():
            self.stage.say(line)
        self.stage.check("rounds went into the lake meanwhile", "changes into snapshot" in said)
        self.run_tier()
        self.stage.check("the lake holds what the table holds", self.lake_equals_table())

    # ---- helpers

    def stop_server(self) -> None:
        for probe in (self.feeder, self.follower, self.asker):
            if probe is not None:
                probe._over.set()
        if self.sums is not None:
            self.sums.stop()
        if self.tierer is not None:
            self.tierer.kill()
        super().stop_server()
