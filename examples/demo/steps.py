"""The ten steps of `make demo`."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from examples import server as processes
from examples.access import ADMIN, Access, SecuredAccess
from examples.demo import data
from examples.demo.kafka_clients import let_group, produce, read_with_group
from examples.demo.pipeline import Pipeline
from examples.demo.truth import Answer, Truth
from examples.server import ROOT, Server
from examples.stage import Stage, StepFailedError
from examples.store import BUCKET, ObjectStore
from headrace import ChangeType, Connection, connect
from headrace.protocol.errors import KafkaError
from headrace.spark import session
from headrace.tablelayer.client.errors import AuthenticationFailed
from headrace.tablelayer.client.security.settings import ConnectionSettings
from headrace.tablelayer.lake.union_read import union_read
from headrace.tablelayer.spark.jars import paimon_jar, spark_jars, store_jars

WORK = ROOT / ".demo"
LAKE_VARIABLE = "LAKE"
LAKES = ("iceberg", "paimon")
PLACE_VARIABLE = "LAKE_ON"
LATE_ORDERS = 10_000
"""Orders that are kept back so that rows still arrive during the union read."""
TABLE = "shop.enriched_orders"
AWAY_S = 1.5
"""Seconds between the kill and the next start."""
RIGHTS = {
    "loader": ("GRANT INSERT ON DATABASE shop TO loader",),
    "pipeline": (
        "GRANT SELECT ON shop.orders TO pipeline",
        "GRANT SELECT ON shop.customer TO pipeline",
        "GRANT SELECT ON shop.nation TO pipeline",
        f"GRANT INSERT ON {TABLE} TO pipeline",
    ),
    "auditor": (f"GRANT SELECT ON {TABLE} TO auditor",),
    "analyst": ("GRANT SELECT ON DATABASE shop TO analyst",),
    "tierer": ("GRANT SELECT, ALTER ON DATABASE shop TO tierer",),
    "marketing": (f"GRANT SELECT (order_key, nation_name) ON {TABLE} TO marketing",),
}
REPLAYED = re.compile(
    r"table (\S+) bucket (\d+): kept ([\d,]+) rows up to offset ([\d,]+), replayed ([\d,]+) rows up to offset"
    r" ([\d,]+)"
)


@dataclass(frozen=True)
class Victim:
    """The broker that is killed, and the buckets of the table that it leads."""

    name: str
    server: Server
    buckets: set[int]


@dataclass
class Demo:
    """State that the steps share."""

    stage: Stage
    work: Path = WORK
    lake: str = LAKES[0]
    on_s3: bool = False
    secure: bool = False
    scale: str = data.SCALE_FACTOR
    access: Access = field(default_factory=Access)
    server: Server = field(init=False)
    truth: Truth = field(init=False)
    store: ObjectStore | None = None
    spark: Any = None
    client: Connection | None = None
    pipeline: Pipeline | None = None
    orders: list[bytes] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)

    # ---- 1 to 4: a server with data in it

    def set_up(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        if self.secure:
            self.access = SecuredAccess(self.work / "access")
        spark_jars(report=self.stage.say)
        if self.lake == "paimon":
            paimon_jar(report=self.stage.say)
        if self.on_s3:
            store_jars("s3", report=self.stage.say)
            self.start_store()
        with ThreadPoolExecutor(1) as background:  # the data is generated while Spark starts
            starting = background.submit(self.start_spark)
            folder = self.work / "tpch"
            data.generate(folder, self.scale)
            self.truth = Truth(folder)
            self.orders = data.orders_json(folder)
            self.keys = data.order_keys(folder)
            nations, customers = data.nations(folder), data.customers(folder)
            self.stage.say(
                f"TPC-H at scale factor {self.scale}: {len(self.orders):,} orders,"
                f" {customers.num_rows:,} customers, {len(nations)} nations"
            )
            self.spark = starting.result()
        self.stage.say(f"Spark {self.spark.version} is up, with its Kafka connector and Iceberg")

    def start_store(self) -> None:
        """Start the object store of the lake; all later processes find it in their environment."""
        self.store = ObjectStore(self.work / "s3.log")
        self.store.start()
        os.environ.update(self.store.environment())
        self.stage.command([f"export AWS_ENDPOINT_URL={self.store.address} AWS_ACCESS_KEY_ID=... AWS_..."])
        self.stage.say(f"an S3 server with the bucket s3://{BUCKET}, by moto")

    def start_spark(self) -> Any:
        """Start a session and run its slow first job."""
        spark = session("headrace demo", memory="1g", log_file=self.work / "spark.log")
        spark.range(1).count()
        return spark

    def start_server(self) -> None:
        self.server = Server(self.work / "data", self.work / "server.log", self.configurations())
        self.server.config = self.access.server_file(self.server.address)
        self.stage.command(["headrace", *self.server.words()])
        self.stage.say(f"[bold]{self.server.start()}[/]")
        self.client = connect(self.settings(ADMIN))

    def configurations(self) -> dict[str, str]:
        """Return the configurations of the server."""
        return {
            f"datalake.{self.lake}.warehouse": self.warehouse,
            "group.initial.rebalance.delay.ms": "0",
            "num.partitions": "4",
        }

    @property
    def warehouse(self) -> str:
        return f"s3://{BUCKET}/warehouse" if self.on_s3 else str(self.work / "warehouse")

    def create_tables(self) -> None:
        script = Path(__file__).parent / "tables.sql"
        if self.lake != LAKES[0]:
            text = script.read_text()
            script = self.work / "tables.sql"
            script.write_text(text.replace(f"'{LAKES[0]}'", f"'{self.lake}'"))
        self.stage.command(["headrace", "sql", "-f", str(script.relative_to(ROOT))])
        listed = self.command("sql", "--server", self.address, "-f", str(script))
        self.stage.console.print(listed.rstrip(), highlight=False, markup=False)
        expected = ("orders", "customer", "nation", "enriched_orders", "order_events")
        self.stage.check("five tables by SQL", all(name in listed for name in expected))
        words = ["topics", "create", "clicks", "--server", self.address]
        self.stage.command(["headrace", *words[:3]])
        self.command(*words)

    def load(self) -> None:
        folder = self.truth.folder
        values = ", ".join(f"({key}, '{name}')" for key, name in data.nations(folder))
        self.command(
            "sql",
            "--server",
            self.address,
            "-e",
            f"INSERT INTO shop.nation VALUES {values}",
            user="loader",
        )
        customers = data.customers(folder)
        begun = time.monotonic()
        with connect(self.settings("loader")) as loader:
            loader.table("shop.customer").upsert(customers)
        took = {"nation, by SQL INSERT": (25, None)}
        took["customer, by the table client in Arrow"] = (customers.num_rows, time.monotonic() - begun)
        begun = time.monotonic()
        sent = produce(self.address, "shop.orders", self.first_orders(), self.access.librdkafka("loader"))
        took["orders, as JSON by confluent-kafka"] = (sent, time.monotonic() - begun)
        produce(self.address, "clicks", [b"no", b"schema", b"here"], self.access.librdkafka(ADMIN))
        self.stage.rows(
            ["client", "rows", "seconds", "rows/s"],
            [
                (client, f"{rows:,}", seconds and f"{seconds:.2f}", seconds and f"{rows / seconds:,.0f}")
                for client, (rows, seconds) in took.items()
            ],
        )
        counts = {
            name: self.connection.table(f"shop.{name}").count() for name in ("nation", "customer", "orders")
        }
        self.stage.check(
            "every sent row is in its table",
            counts == {"nation": 25, "customer": customers.num_rows, "orders": sent},
            ", ".join(f"{name} {count:,}" for name, count in counts.items()),
        )

    def first_orders(self) -> list[bytes]:
        """Return the orders that are there before the pipeline starts."""
        return self.orders[:-LATE_ORDERS]

    # ---- users, where there are any

    def let_in(self) -> None:
        """Create a user for each part, with exactly the rights that it needs."""
        assert isinstance(self.access, SecuredAccess)
        script = self.access.secret_file(
            "users.sql", [f"CREATE USER {name} PASSWORD '{self.access.password(name)}';" for name in RIGHTS]
        )
        self.command("sql", "--server", self.address, "-f", str(script))
        self.sql(*(statement for given in RIGHTS.values() for statement in given), "SHOW GRANTS")
        let_group(self.address, "auditors", "auditor", self.access.librdkafka(ADMIN))

    def fence(self) -> None:
        """Check that no user can do more than that."""
        assert isinstance(self.access, SecuredAccess)
        key = self.keys[8]
        with connect(self.settings("marketing")) as marketing:
            table = marketing.table(TABLE)
            row = table.lookup_one({"order_key": key}, columns=["order_key", "nation_name"])
            self.stage.check(
                "a user with rights to two columns reads them", row is not None and len(row) == 2
            )
            self.refused("... and no other column", lambda: table.lookup_one({"order_key": key}))
        with connect(self.settings("loader")) as loader:
            self.refused(
                "a user with the right to write cannot read", lambda: loader.table("shop.orders").count()
            )
            self.refused("... nor drop", lambda: loader.admin.drop_table("shop.orders"))
        with connect(self.settings("auditor")) as auditor:
            self.stage.check(
                "listings show only permitted tables",
                auditor.admin.list_tables("shop") == ["enriched_orders"],
            )
        wrong = {**self.access.librdkafka("auditor"), "sasl.password": "wrong"}
        self.refused("a wrong password", lambda: connect(self.address, properties=wrong))

    def refused(self, what: str, attempt: Callable[[], object]) -> None:
        try:
            attempt()
        except (KafkaError, AuthenticationFailed) as error:
            self.stage.check(f"{what}: refused", True, str(error))
        else:
            self.stage.check(f"{what}: refused", False)

    # ---- 5 and 6: the pipeline, and the fright

    def run_half(self) -> None:
        self.pipeline = Pipeline(
            self.spark, self.settings("pipeline"), self.access.spark("pipeline"), self.work / "checkpoint"
        )
        table = self.connection.table(TABLE)
        half = len(self.orders) // 2
        self.pipeline.start()
        with self.stage.progress("enriching", len(self.orders) - LATE_ORDERS) as show:
            seen = self.pipeline.wait(table.count, half, show)
        self.pipeline.stop()
        self.stage.say(f"stopped half way, at {seen:,} rows, which the checkpoint has")
        self.pipeline.start()
        self.stage.say("started again from the checkpoint")

    def fright(self) -> None:
        assert self.pipeline is not None
        table = self.connection.table(TABLE)
        target = len(self.orders) - LATE_ORDERS
        run_id = str(self.pipeline.query.runId)
        with self.stage.progress("enriching", target) as show:
            self.pipeline.wait(table.count, target * 2 // 3, show)
            victim = self.victim()
            logs = [(each, each.log_path.stat().st_size) for each in self.servers()]
            at = self.pipeline.wait(table.count, 0, show)
            victim.server.kill()
            killed = time.monotonic()
            self.stage.say(
                f"[bold red]kill -9[/] of {victim.name} at {at:,} rows, in the middle of the stream"
            )

            def until_the_next_row() -> None:
                assert self.pipeline is not None
                survived = self.pipeline.wait(table.count, at, show)
                self.pipeline.wait(table.count, survived + 1, show)
                self.stage.say(f"the first new row {time.monotonic() - killed:.1f} s after the kill")

            self.come_back(victim, until_the_next_row)
            self.pipeline.wait(table.count, target, show)
        same = self.pipeline.query.isActive and str(self.pipeline.query.runId) == run_id
        self.stage.check("the pipeline went on by itself", same, "the same run of the same query")
        batches = self.pipeline.batches()
        self.pipeline.drain()
        self.stage.say(
            "micro-batches since the pipeline's restart: "
            + ", ".join(f"{rows:,} in {seconds:.1f} s" for _, rows, seconds in batches)
        )
        said = "".join(server.said(since) for server, since in logs)
        found = [match.groups() for match in REPLAYED.finditer(said)]
        mine = [entry for entry in found if entry[0] == TABLE]
        self.stage.rows(
            ["bucket", "rows kept", "up to offset", "rows replayed", "up to offset"],
            [row[1:] for row in mine],
        )
        kept, replayed = (sum(int(row[column].replace(",", "")) for row in mine) for column in (2, 4))
        self.stage.check(
            "the key-value state was kept, only the log's tail replayed",
            {int(entry[1]) for entry in mine} == victim.buckets and kept > 0,
            f"{kept:,} rows kept, {replayed:,} replayed",
        )
        count = table.count()
        self.stage.check("no row is lost or doubled after the kill", count == target, f"{count:,} rows")

    def servers(self) -> list[Server]:
        """Return all servers."""
        return [self.server]

    def victim(self) -> Victim:
        return Victim("the server", self.server, set(range(4)))

    def come_back(self, victim: Victim, until_the_next_row: Callable[[], None]) -> None:
        """Start the server again after its kill."""
        time.sleep(AWAY_S)
        self.stage.say(f"[bold]{victim.server.start()}[/]")
        until_the_next_row()

    # ---- 7: questions

    def ask(self) -> None:
        key, other = self.keys[6], self.keys[7]
        table = self.connection.table(TABLE)
        answers = self.sql(
            f"SELECT order_key, total_price, cust_name, nation_name FROM {TABLE} WHERE order_key = {key}",
            f"SELECT order_key, total_price, nation_name FROM {TABLE} LIMIT 3",
            f"SELECT COUNT(*) FROM {TABLE}",
        )
        expected = len(self.orders) - LATE_ORDERS
        self.stage.check("lookup, LIMIT and COUNT(*) answer", str(expected) in re.sub(r"[,_ ]", "", answers))
        events = ("placed", "paid", "sent")
        rows = ", ".join(f"({k}, {n}, '{event}')" for k in (1, key) for n, event in enumerate(events))
        self.sql(
            f"INSERT INTO shop.order_events VALUES {rows}",
            f"SELECT * FROM shop.order_events WHERE order_key = {key}",
        )
        found = self.connection.table("shop.order_events").prefix_lookup([{"order_key": key}])
        self.stage.check(
            "a prefix lookup finds an order's events in order",
            tuple(found.column("event").to_pylist()) == events,
        )
        price = Decimal("123456.78")
        self.sql(
            f"UPDATE {TABLE} SET total_price = 0.01 WHERE order_key = {other}",
            f"UPDATE {TABLE} SET total_price = {price} WHERE order_key = {key}",
        )
        self.truth.update(other, Decimal("0.01"))
        updated = table.lookup_one({"order_key": key})
        self.stage.check(
            "UPDATE by key changed one column",
            updated is not None and updated["total_price"] == price and updated["cust_name"] is not None,
        )
        self.sql(f"DELETE FROM {TABLE} WHERE order_key = {key}")
        self.stage.check("DELETE by key", table.lookup_one({"order_key": key}) is None)
        self.truth.delete(key)
        self.changelog_of(key)

    def changelog_of(self, key: int) -> None:
        """Return one key's changes, by a consumer group and by the table client."""
        seen = read_with_group(
            self.address,
            "auditors",
            TABLE,
            {"order_key": key},
            self.access.librdkafka("auditor"),
            until_tombstone=True,
        )
        self.stage.rows(
            ["partition", "offset", "value"],
            [
                (p, o, "(tombstone)" if row is None else json.dumps(row, separators=(",", ":"))[:90] + "...")
                for p, o, row in seen.of_key
            ],
            title=f"order {key} as Kafka consumer group 'auditors' sees it",
        )
        changes: list[tuple[int, int, str, Any]] = []
        for part in self.connection.table(TABLE).scan(
            columns=["order_key", "total_price"], start="earliest", until="latest"
        ):
            keys = part.batch.column("order_key").to_numpy()
            for index in (keys == key).nonzero()[0].tolist():
                kind = ChangeType(part.change_types[index]).name
                price = part.batch.column("total_price")[index].as_py()
                changes.append((part.bucket, int(part.offsets[index]), kind, price))
        self.stage.rows(
            ["bucket", "offset", "change", "total_price"],
            changes,
            title=f"order {key} as the table client sees it",
        )
        kinds = [kind for _, _, kind, _ in changes]
        self.stage.check(
            "the changelog of the key ends with -U +U -D",
            kinds[:1] == ["INSERT"] and kinds[-3:] == ["UPDATE_BEFORE", "UPDATE_AFTER", "DELETE"],
        )
        visible = [(bucket, offset) for bucket, offset, kind, _ in changes if kind != "UPDATE_BEFORE"]
        self.stage.check(
            "the consumer group sees the same rows at the same offsets, the delete as a tombstone",
            [(p, o) for p, o, _ in seen.of_key] == visible and seen.of_key[-1][2] is None,
        )

    # ---- 8 to 10: the lake

    def tier(self) -> None:
        first = self.run_tier()
        self.stage.check("a round goes into the lake", "changes into snapshot" in first)
        self.stage.check("the lake equals the table", self.lake_equals_table())
        snapshots = self.snapshots()
        self.run_tier()
        self.stage.check("running it again changes nothing", self.snapshots() == snapshots)
        table = self.connection.table(TABLE)
        some = self.keys[1_000:2_000]
        prices = [Decimal(key % 1_000) + Decimal("0.99") for key in some]
        _, rows = table.lookup([{"order_key": key} for key in some])
        at = rows.schema.get_field_index("total_price")
        table.upsert(rows.set_column(at, "total_price", pa.array(prices, pa.decimal128(15, 2))))
        gone = self.keys[3_000:3_500]
        table.delete([{"order_key": key} for key in gone])
        for key, price in zip(some, prices, strict=True):
            self.truth.update(key, price)
        for key in gone:
            self.truth.delete(key)
        self.stage.say(f"{len(some):,} orders updated, {len(gone):,} deleted; now two tierers at once")
        outcomes = self.run_tierers(2)
        winners = sum("changes into snapshot" in text for text in outcomes)
        self.stage.check("of two tierers one did the round", winners == 1)
        self.stage.check("the lake followed the updates and deletes, nothing twice", self.lake_equals_table())
        self.show_snapshots()

    def run_tier(self) -> str:
        self.stage.command(["headrace", "tier", "--once"])
        begun = time.monotonic()
        words = ("tier", "--once", "--server", self.address)
        said = self.command(*words, user="tierer", timeout_s=240)
        self.stage.say(f"{said.strip()} [dim]({time.monotonic() - begun:.1f} s with Spark's start)[/]")
        return said

    def run_tierers(self, count: int) -> list[str]:
        words = ("tier", "--once", "--server", self.address)
        config = self.access.client_file("tierer")
        running = [processes.start(*words, config=config) for _ in range(count)]
        outcomes = [process.communicate(timeout=240)[0].strip() for process in running]
        for number, text in enumerate(outcomes, 1):
            self.stage.say(f"tierer {number}: {text}")
        return outcomes

    def lake_equals_table(self) -> bool:
        """Compare every row of the lake alone with the table client's view of the table."""
        lake = union_read(self.spark, self.settings("analyst"), f"{TABLE}$lake").toArrow()
        table = self.connection.table(TABLE).to_arrow()
        lake = lake.select(table.column_names)  # the lake also has each row's place in the log
        order = [("order_key", "ascending")]
        return bool(lake.sort_by(order).cast(table.schema).equals(table.sort_by(order)))

    def snapshots(self) -> int:
        return int(self.snapshot_rows().count())

    def snapshot_rows(self) -> Any:
        return union_read(self.spark, self.settings("analyst"), f"{TABLE}$lake$snapshots")

    def show_snapshots(self) -> None:
        found = self.snapshot_rows().select("snapshot_id", "operation", "epoch", "offsets").collect()
        self.stage.rows(
            [f"{self.lake.title()} snapshot", "operation", "epoch", "tiered offsets"],
            [tuple(row) for row in found],
            title="offsets are inside the lake's own snapshots",
        )

    def union(self) -> None:
        assert self.pipeline is not None
        late = self.orders[-LATE_ORDERS:]
        self.pipeline.start()
        pinned_once = threading.Event()
        sender = threading.Thread(target=self.trickle, args=(late, pinned_once), daemon=True)
        sender.start()
        table = self.connection.table(TABLE)
        begin = table.count()
        self.pipeline.wait(table.count, begin + 1, lambda _: None)
        pinned = union_read(self.spark, self.settings("analyst"), TABLE)
        counts = [pinned.count()]
        pinned_once.set()
        lake = union_read(self.spark, self.settings("analyst"), f"{TABLE}$lake").count()
        self.pipeline.wait(table.count, counts[0] + 1, lambda _: None)
        counts.append(pinned.count())
        later = union_read(self.spark, self.settings("analyst"), TABLE).count()
        sender.join()
        self.stage.rows(
            ["what", "rows"],
            [
                ("enriched_orders$lake, the lake alone", f"{lake:,}"),
                ("enriched_orders, lake and log", f"{counts[0]:,}"),
                ("the same DataFrame again, while rows arrive", f"{counts[1]:,}"),
                ("enriched_orders, asked again", f"{later:,}"),
            ],
        )
        self.stage.check("a union read holds still while rows arrive", counts[0] == counts[1])
        self.stage.check(
            "it sees more than the lake, and a new one sees more again", lake < counts[0] < later
        )
        everything = len(self.orders) - len(self.truth.deleted)
        self.pipeline.wait(table.count, everything, lambda _: None)
        self.pipeline.drain()

    def trickle(self, late: list[bytes], pinned_once: threading.Event) -> None:
        """Send the last orders, a few at a time; the second half after the first union read, however long it took."""
        step = len(late) // 10
        for start in range(0, len(late), step):
            if start >= len(late) // 2:
                pinned_once.wait(timeout=120)
            some = late[start : start + step]
            produce(self.address, "shop.orders", some, self.access.librdkafka("loader"))
            time.sleep(0.5)

    def verify(self) -> None:
        from pyspark.sql import functions as f

        orders = union_read(self.spark, self.settings("analyst"), TABLE)
        grouped = orders.groupBy("nation_name", "cust_mktsegment").agg(
            f.sum("total_price").alias("revenue"), f.count("*").alias("orders")
        )
        ours: Answer = {(row[0], row[1]): (row[2], row[3]) for row in grouped.collect()}
        theirs = self.truth.answer()
        best = sorted(theirs, key=lambda group: theirs[group][0], reverse=True)[:5]
        self.stage.rows(
            ["nation", "segment", "revenue (union read)", "revenue (DuckDB)", "orders", "orders"],
            [
                (
                    *group,
                    ours.get(group, (None, 0))[0],
                    theirs[group][0],
                    ours.get(group, (0, None))[1],
                    theirs[group][1],
                )
                for group in best
            ],
            title=f"the first 5 of {len(theirs)} groups",
        )
        total = sum((revenue for revenue, _ in ours.values()), Decimal(0))
        self.stage.check(
            "revenue and order count per nation and market segment equal DuckDB's, to the cent",
            ours == theirs and len(theirs) > 0,
            f"{len(ours)} groups, {sum(count for _, count in ours.values()):,} orders, {total:,} in all",
        )

    # ---- helpers

    @property
    def address(self) -> str:
        """The address for clients."""
        return self.server.address

    @property
    def connection(self) -> Connection:
        if self.client is None:
            raise StepFailedError("the server was not started")
        return self.client

    def settings(self, user: str) -> ConnectionSettings:
        return self.access.settings(self.address, user)

    def command(self, *words: str, user: str = ADMIN, timeout_s: float = 120.0) -> str:
        """Run a headrace command as a user; return its output."""
        return processes.run(*words, timeout_s=timeout_s, config=self.access.client_file(user))

    def sql(self, *statements: str) -> str:
        """Run `headrace sql` and show its output."""
        text = "; ".join(statements)
        self.stage.command(["headrace", "sql", "-e", f'"{text}"'])
        said = self.command("sql", "--server", self.address, "-e", text)
        self.stage.console.print(said.rstrip(), highlight=False, markup=False)
        return said

    def close(self) -> None:
        """End all started processes; keep the files for inspection."""
        if self.pipeline is not None:
            self.pipeline.stop()
        if self.client is not None:
            self.client.close()
        self.stop_server()
        if self.spark is not None:
            self.spark.stop()
        if self.store is not None:
            self.store.stop()

    def stop_server(self) -> None:
        """Stop the server, if it was started."""
        if hasattr(self, "server"):
            self.server.stop()
