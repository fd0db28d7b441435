"""The cluster in the console: overview, plots, brokers, the lake, refused records. All methods block."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

from headrace.tablelayer.client import ConfigKind, Connection, KafkaError, UnsupportedRequest
from headrace.tablelayer.console.history import FIELDS, History
from headrace.tablelayer.console.routes import RequestError, get
from headrace.tablelayer.console.values import configs_of
from headrace.tablelayer.lake.coordinator import list_lake

PLOT_MINUTES_MAX: Final = 1440


class Cluster:
    def __init__(self, connection: Connection, history: History) -> None:
        self._connection = connection
        self._history = history

    @get("/api/overview")
    def overview(self) -> dict[str, Any]:
        """Rates, sizes and health."""
        cluster = self._connection.kafka.describe_cluster()
        rates = self._history.rates()
        busiest = sorted(rates.items(), key=lambda each: (-each[1], each[0]))[:10]
        return {
            "cluster_id": cluster.cluster_id,
            "controller": cluster.controller,
            "brokers": len(cluster.brokers),
            "topics": cluster.topic_count,
            "partitions": cluster.partition_count,
            "missing": [each.broker_id for each in cluster.missing],
            "under_replicated": len(cluster.under_replicated),
            "offline": [{"topic": topic, "partition": partition} for topic, partition in cluster.offline],
            "busiest": [{"topic": name, "records_per_second": rate} for name, rate in busiest],
            "records_per_second": sum(rates.values()),
            "bytes": self._history.bytes(),
            "trouble": self._history.trouble,
            "refused": sum(each["count"] for each in self.refused()["tables"]),
        }

    @get("/api/plots")
    def plots(
        self,
        of: Annotated[str, "The kind of resource: cluster, topic, table, group, broker or lake."] = "cluster",
        name: Annotated[str, "The name of the topic, table, group, or the broker's id."] = "",
        minutes: Annotated[int, "Length of the time up to now, in minutes."] = 60,
    ) -> dict[str, Any]:
        """Numbers over time: each 5 seconds of the last hour, or each minute of the last day."""
        if of not in FIELDS:
            raise RequestError(f"of is {of[:100]!r}: it must be one of {', '.join(FIELDS)}")
        if not 1 <= minutes <= PLOT_MINUTES_MAX:
            raise RequestError(f"minutes is {minutes}: it must be 1 to {PLOT_MINUTES_MAX}")
        now = int(time.time() * 1000)
        begin = now - minutes * 60_000
        return {"begin_ms": begin, "end_ms": now, "points": self._history.points(of, name, begin, now)}

    @get("/api/brokers")
    def brokers(self) -> dict[str, Any]:
        """Brokers with their processes and disks."""
        kafka = self._connection.kafka
        cluster = kafka.describe_cluster()
        try:
            processes = {each.broker_id: each for each in self._connection.admin.servers()}
        except (UnsupportedRequest, KafkaError):
            processes = {}
        try:
            disks = kafka.log_sizes().disks
        except KafkaError:
            disks = {}
        listed = []
        for each in cluster.brokers:
            process = processes.get(each.broker_id)
            free, total = disks.get(each.broker_id, (-1, -1))
            listed.append(
                {
                    "broker": each.broker_id,
                    "address": f"{each.host}:{each.port}",
                    "rack": each.rack,
                    "alive": True,
                    "controller": each.broker_id == cluster.controller,
                    "partitions_led": each.partitions_led,
                    "version": None if process is None else process.version,
                    "up_ms": None if process is None else process.uptime_ms,
                    "memory_bytes": None if process is None else process.memory_bytes,
                    "open_files": -1 if process is None else process.open_files,
                    "open_files_max": -1 if process is None else process.open_files_max,
                    "disk_free_bytes": free,
                    "disk_bytes": total,
                }
            )
        listed += [
            {
                "broker": each.broker_id,
                "address": f"{each.host}:{each.port}" if each.host else None,
                "rack": each.rack,
                "alive": False,
                "controller": False,
                "partitions_led": 0,
                "version": None,
                "up_ms": None,
                "memory_bytes": None,
                "open_files": -1,
                "open_files_max": -1,
                "disk_free_bytes": -1,
                "disk_bytes": -1,
            }
            for each in cluster.missing
        ]
        return {"brokers": sorted(listed, key=lambda each: each["broker"])}

    @get("/api/brokers/{broker}/configs")
    def broker_configs(self, broker: str) -> dict[str, Any]:
        """A broker's configurations."""
        return {"configs": configs_of(self._connection, ConfigKind.BROKER, broker)}

    @get("/api/lake")
    def lake(self) -> dict[str, Any]:
        """The progress of tiering to the lake, with running rounds and failures."""
        try:
            listed = list_lake(self._connection)
        except UnsupportedRequest:
            listed = []
        return {
            "entries": [
                {
                    "name": each.name,
                    "topic": each.is_topic,
                    "format": each.format,
                    "snapshot": None if each.snapshot_id < 0 else str(each.snapshot_id),
                    "committed_at_ms": None if each.committed_at_ms < 0 else each.committed_at_ms,
                    "freshness_ms": each.freshness_ms,
                    "behind": each.behind,
                    "behind_ms": None if each.behind_ms < 0 else each.behind_ms,
                    "commits": each.commits,
                    "failures": each.failures,
                    "retry_in_ms": each.retry_in_ms,
                    "failure": each.failure,
                    "worker": each.worker,
                    "doing": each.doing,
                    "round_ms": each.round_ms,
                }
                for each in listed
            ]
        }

    @get("/api/refused")
    def refused(self, topic: Annotated[str | None, "Only the table of this topic."] = None) -> dict[str, Any]:
        """Records that tables refused lately, with the reasons."""
        try:
            found = self._connection.admin.refused(topic)
        except UnsupportedRequest:
            found = []
        return {
            "tables": [
                {
                    "table": table.table,
                    "count": table.count,
                    "records": [
                        {
                            "time_ms": each.time_ms,
                            "topic": each.topic,
                            "partition": each.partition,
                            "index": each.index,
                            "code": each.code,
                            "reason": each.reason,
                            "dead_letter": each.dead_letter,
                        }
                        for each in table.records
                    ],
                }
                for table in found
            ]
        }
