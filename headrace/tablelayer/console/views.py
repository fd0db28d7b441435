"""Topics, groups, brokers and the lake for the console, asked of the servers each time. All methods block."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import chain
from typing import Any, Final

from headrace.tablelayer.client import ConfigKind, Connection, KafkaError, TableError, UnsupportedRequest
from headrace.tablelayer.client.admin.produce import OutgoingRecord
from headrace.tablelayer.client.admin.record_json import record_from_json
from headrace.tablelayer.console.history import FIELDS, History
from headrace.tablelayer.console.routes import RequestError
from headrace.tablelayer.console.tails import Tail, follow_topic
from headrace.tablelayer.console.values import json_of, record_of
from headrace.tablelayer.console.wanted import Wanted
from headrace.tablelayer.lake.coordinator import list_lake

EARLIEST: Final = -2
RECORDS_MAX: Final = 500
LOOKED_AT_MAX: Final = 50_000
"""Records that one request searches for matches. The answer says where to continue."""
LOOK_SECONDS_MAX: Final = 5.0
PRODUCED_MAX: Final = 1000
PLOT_MINUTES_MAX: Final = 1440
_PARTITIONS_MAX: Final = 10_000


class Views:
    def __init__(self, connection: Connection, history: History) -> None:
        self._connection = connection
        self._history = history

    # -- the overview - ----------------------------------------------------------------------------------------

    def overview(self) -> dict[str, Any]:
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

    def plots(self, of: str, name: str, minutes: int) -> dict[str, Any]:
        """Return the numbers of the last minutes of the cluster, a topic, a group, a broker or a table in the lake."""
        if of not in FIELDS:
            raise RequestError(f"of is {of[:100]!r}: it must be one of {', '.join(FIELDS)}")
        if not 1 <= minutes <= PLOT_MINUTES_MAX:
            raise RequestError(f"minutes is {minutes}: it must be 1 to {PLOT_MINUTES_MAX}")
        now = int(time.time() * 1000)
        begin = now - minutes * 60_000
        return {"begin_ms": begin, "end_ms": now, "points": self._history.points(of, name, begin, now)}

    def brokers(self) -> dict[str, Any]:
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

    def broker_configs(self, broker: str) -> dict[str, Any]:
        return {"configs": self._configs(ConfigKind.BROKER, broker)}

    # -- topics --------------------------------------------------------------------------------------------

    def topics(self, internal: bool) -> dict[str, Any]:
        kafka, admin = self._connection.kafka, self._connection.admin
        rates = self._history.rates()
        try:
            sizes = kafka.log_sizes().bytes
        except KafkaError:
            sizes = {}
        try:
            tables = {f"{d}.{t}" for d in admin.list_databases() for t in admin.list_tables(d)}
        except UnsupportedRequest:
            tables = set()
        return {
            "topics": [
                {
                    "name": each.name,
                    "internal": each.is_internal,
                    "table": each.name in tables,
                    "partitions": len(each.leaders),
                    "under_replicated": sum(
                        len(p.in_sync) < len(p.replicas) for p in each.partitions.values()
                    ),
                    "offline": sum(p.leader < 0 for p in each.partitions.values()),
                    "bytes": sum(sizes.get(each.name, {}).values()),
                    "records_per_second": rates.get(each.name),
                }
                for each in kafka.list_topics()
                if internal or not each.is_internal
            ]
        }

    def topic(self, topic: str) -> dict[str, Any]:
        kafka = self._connection.kafka
        found = kafka.describe_topic(topic)
        ranges = kafka.offset_ranges([topic]).get(topic, {})
        try:
            sizes: Mapping[int, int] = kafka.log_sizes(topic).bytes.get(topic, {})
        except KafkaError:
            sizes = {}
        return {
            "name": found.name,
            "id": str(found.topic_id),
            "internal": found.is_internal,
            "table": found.is_table or (found.configs_withheld and self._is_table(topic)),
            "records_per_second": self._history.rates().get(topic),
            "partitions": [
                {
                    "partition": partition,
                    "leader": each.leader if each.leader >= 0 else None,
                    "replicas": list(each.replicas),
                    "in_sync": list(each.in_sync),
                    "offline": list(each.offline),
                    "first_offset": ranges[partition].first if partition in ranges else None,
                    "end_offset": ranges[partition].end if partition in ranges else None,
                    "bytes": sizes.get(partition),
                }
                for partition, each in sorted(found.partitions.items())
            ],
        }

    def _is_table(self, topic: str) -> bool:
        try:
            self._connection.admin.describe_table(topic)
        except (TableError, KafkaError, UnsupportedRequest, ValueError):
            return False
        return True

    def topic_configs(self, topic: str) -> dict[str, Any]:
        return {"configs": self._configs(ConfigKind.TOPIC, topic)}

    def _configs(self, kind: ConfigKind, name: str) -> list[dict[str, Any]]:
        return [
            {
                "name": each.name,
                "value": None if each.is_sensitive else each.value,
                "sensitive": each.is_sensitive,
                "from": each.source,
                "read_only": each.is_read_only,
                "default": each.is_default,
                "documentation": each.documentation,
            }
            for each in self._connection.kafka.configs(kind, name)
        ]

    def create(self, body: Any) -> dict[str, Any]:
        """Create a topic. Partitions and replicas that are left out are the server's defaults."""
        wanted = _known(body, "name", "partitions", "replicas", "configs")
        configs = wanted.get("configs", {})
        made = self._connection.kafka.create_topic(
            _text(wanted, "name"),
            partitions=_whole(wanted, "partitions", -1),
            replicas=_whole(wanted, "replicas", -1),
            configs=_configs(configs, "configs"),
        )
        return {"name": made.name, "partitions": len(made.partitions)}

    def delete(self, topic: str, body: Any) -> dict[str, Any]:
        """Delete a topic, if the request repeats its name. A table is not deleted so."""
        if _text(_known(body, "name"), "name") != topic:
            raise RequestError(f'send {{"name": "{topic}"}} to delete this topic with its records')
        if self._connection.kafka.describe_topic(topic).is_table:
            raise RequestError(
                f"{topic} is a table: drop it with DROP TABLE in headrace sql", HTTPStatus.CONFLICT
            )
        self._connection.kafka.delete_topic(topic)
        return {"name": topic}

    def alter(self, topic: str, body: Any) -> dict[str, Any]:
        """Set some configurations of a topic, and reset others to their defaults: all or none."""
        wanted = _known(body, "set", "reset")
        values, reset = _configs(wanted.get("set", {}), "set"), wanted.get("reset", [])
        if not isinstance(reset, list) or not all(isinstance(each, str) for each in reset):
            raise RequestError("reset must be a list of names")
        if not values and not reset:
            raise RequestError(
                'send {"set": {"retention.ms": "60000"}, "reset": ["cleanup.policy"]}, or one of both'
            )
        self._connection.kafka.alter_configs(ConfigKind.TOPIC, topic, values, reset)
        return {"set": sorted(values), "reset": sorted(reset)}

    def add_partitions(self, topic: str, body: Any) -> dict[str, Any]:
        """Increase the number of a topic's partitions."""
        count = _whole(_known(body, "count"), "count")
        self._connection.kafka.add_partitions(topic, count)
        return {"name": topic, "partitions": count}

    def records(
        self,
        topic: str,
        partition: int | None,
        offset: int | None,
        timestamp: int | None,
        key: str | None,
        contains: str | None,
        where: str | None,
        limit: int,
        newest: bool,
    ) -> dict[str, Any]:
        """Return records in order: the `newest`, or those from an offset, a time, or the beginning on."""
        if not 1 <= limit <= RECORDS_MAX:
            raise RequestError(f"limit is {limit}: it must be 1 to {RECORDS_MAX}")
        kafka = self._connection.kafka
        described = kafka.describe_topic(topic)  # raises at once if it does not exist
        count = len(described.partitions)
        if partition is not None and partition not in described.partitions:
            raise RequestError(f"{topic} has no partition {partition}: it has 0 to {count - 1}")
        if offset is not None and partition is None and count > 1:
            raise RequestError("an offset needs a partition: give one")
        ranges = kafka.offset_ranges([topic]).get(topic, {})
        if partition is not None and partition not in ranges:
            raise RequestError(
                f"partition {partition} of {topic} has no leader now: its brokers are not alive"
            )
        begin = {p: each.first for p, each in ranges.items()}
        end = {p: each.end for p, each in ranges.items()}
        places = sorted(end) if partition is None else [partition]
        if timestamp is not None:
            at = {
                p: found if found >= 0 else end[p]
                for p, found in kafka.offsets(topic, timestamp, partitions=places).items()
            }
        elif offset is not None:
            at = dict.fromkeys(places, offset)
        elif newest:
            is_filtered = key is not None or contains is not None or where is not None
            back = LOOKED_AT_MAX // len(places) if is_filtered else limit
            at = {p: end[p] - back for p in places}
        else:
            at = begin
        start = {p: min(max(at[p], begin[p]), end[p]) for p in places}
        wanted = Wanted(self._connection, topic, key, contains, where)
        found, after, looked_at = self._matching(topic, start, end, wanted, limit, newest)
        found.sort(key=lambda each: (each["timestamp_ms"], each["partition"], each["offset"]))
        return {
            "records": found[-limit:] if newest else found,
            "next": {str(p): offset for p, offset in after.items()},
            "ends": {str(p): end[p] for p in places},
            "without_leader": sorted(described.partitions.keys() - ranges.keys()),
            "looked_at": looked_at,
            "complete": all(after[p] >= end[p] for p in places),
        }

    def _matching(
        self,
        topic: str,
        start: Mapping[int, int],
        end: Mapping[int, int],
        wanted: Wanted,
        limit: int,
        newest: bool,
    ) -> tuple[list[dict[str, Any]], dict[int, int], int]:
        """Return (matching records, next offset by partition, number of records searched).

        The search ends at the first `limit` matches, or keeps the `newest` of each partition.
        """
        at, looked_at = dict(start), 0
        found: dict[int, deque[dict[str, Any]]] = {p: deque(maxlen=limit) for p in at}
        until = time.monotonic() + LOOK_SECONDS_MAX
        is_full = False
        while not is_full and (unread := {p: offset for p, offset in at.items() if offset < end[p]}):
            batches, after = self._connection.kafka.read_batches(topic, unread, max_wait_ms=200)
            if not batches and after == unread:
                break  # open transactions
            for p, records in batches:
                indices = wanted.indices(p, records, at[p], end[p])
                room = limit - (0 if newest else sum(map(len, found.values())))
                is_full = not newest and len(indices) > room
                stop_at = int(records.offsets[indices[room]]) if is_full else records.header.next_offset
                taken = indices[-room:] if newest else indices[:room]
                found[p].extend(record_of(p, records, each) for each in taken)
                looked_at += int(((records.offsets >= at[p]) & (records.offsets < stop_at)).sum())
                at[p] = stop_at
                if is_full:
                    break
            else:
                at.update(after)
            if looked_at >= LOOKED_AT_MAX or time.monotonic() >= until:
                break
        return list(chain.from_iterable(found.values())), at, looked_at

    def tail(
        self, topic: str, partition: int | None, key: str | None, contains: str | None, where: str | None
    ) -> Callable[[Tail], None]:
        """Return a function that reads new records into a tail."""
        return follow_topic(
            self._connection,
            topic,
            partition,
            lambda: Wanted(self._connection, topic, key, contains, where),
        )

    def produce(self, topic: str, body: Any) -> dict[str, Any]:
        entries = body.get("records") if isinstance(body, dict) else None
        if not isinstance(entries, list) or not 1 <= len(entries) <= PRODUCED_MAX:
            raise RequestError(f'send {{"records": [...]}} with 1 to {PRODUCED_MAX} records')
        places = self._connection.kafka.produce(topic, [_outgoing(each) for each in entries])
        return {"written": [{"partition": partition, "offset": offset} for partition, offset in places]}

    # -- groups --------------------------------------------------------------------------------------------

    def groups(self) -> dict[str, Any]:
        kafka = self._connection.kafka
        listed, ends = [], dict[str, Mapping[int, int]]()
        for each in kafka.list_groups()[:1000]:
            try:
                group = kafka.describe_group(each.group)
            except KafkaError:
                continue  # deleted meanwhile
            topics = {topic for topic, _ in group.positions}
            lag = 0
            ends |= self._ends(topics - ends.keys())
            for (topic, partition), offset in group.positions.items():
                lag += max(0, ends[topic].get(partition, offset) - offset)
            listed.append(
                {
                    "group": each.group,
                    "state": group.state,
                    "protocol": each.protocol_type,
                    "members": len(group.members),
                    "topics": sorted(topics),
                    "lag": lag,
                }
            )
        return {"groups": listed}

    def group(self, group: str) -> dict[str, Any]:
        found = self._connection.kafka.describe_group(group)
        ends = self._ends({topic for topic, _ in found.positions})
        return {
            "group": found.group,
            "state": found.state,
            "assignor": found.assignor,
            "members": [
                {
                    "member": each.member_id,
                    "client": each.client_id,
                    "host": each.client_host,
                    "instance": each.instance_id,
                    "assigned": [
                        {"topic": topic, "partitions": list(partitions)}
                        for topic, partitions in sorted(each.assigned.items())
                    ],
                }
                for each in found.members
            ],
            "positions": [
                {
                    "topic": topic,
                    "partition": partition,
                    "offset": offset,
                    "end_offset": ends[topic].get(partition),
                    "lag": max(0, ends[topic].get(partition, offset) - offset),
                }
                for (topic, partition), offset in sorted(found.positions.items())
            ],
        }

    def reset(self, group: str, body: Any) -> dict[str, Any]:
        """Set the positions of a group without members in a topic to earliest, latest, an offset or a time (ISO)."""
        topic, to = (body.get("topic"), body.get("to")) if isinstance(body, dict) else (None, None)
        dry_run = isinstance(body, dict) and body.get("dry_run") is True
        if not isinstance(topic, str) or not isinstance(to, (str, int)) or isinstance(to, bool):
            raise RequestError('send {"topic": "...", "to": "earliest", "latest", an offset or a time}')
        kafka = self._connection.kafka
        begin, end = kafka.offsets(topic, EARLIEST), kafka.offsets(topic)
        if to == "earliest":
            wanted: Mapping[int, int] = begin
        elif to == "latest":
            wanted = end
        elif str(to).isdigit():
            wanted = {p: min(max(int(to), begin[p]), end[p]) for p in end}
        else:
            found_at = kafka.offsets(topic, _moment(str(to)))
            wanted = {p: end[p] if offset < 0 else offset for p, offset in found_at.items()}
        positions: Mapping[tuple[str, int], int] = {}
        try:
            found = kafka.describe_group(group)
            positions = found.positions
            if found.members:
                members = "a member" if len(found.members) == 1 else f"{len(found.members)} members"
                raise RequestError(
                    f"group {group} has {members}: stop its consumers first", HTTPStatus.CONFLICT
                )
        except KafkaError as error:
            if error.code.name != "GROUP_ID_NOT_FOUND":
                raise
        if not dry_run:
            kafka.commit_offsets(group, topic, wanted)
        return {
            "topic": topic,
            "set": not dry_run,
            "offsets": [
                {"partition": p, "before": positions.get((topic, p)), "after": offset}
                for p, offset in sorted(wanted.items())
            ],
        }

    def _ends(self, topics: Collection[str]) -> dict[str, Mapping[int, int]]:
        """Return the ends of partitions that have a leader; nothing for topics that do not exist."""
        ranges = self._connection.kafka.offset_ranges(sorted(topics)) if topics else {}
        return {topic: {p: each.end for p, each in ranges.get(topic, {}).items()} for topic in topics}

    # -- the lake, refused records -------------------------------------------------------------------------

    def lake(self) -> dict[str, Any]:
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

    def refused(self, topic: str | None = None) -> dict[str, Any]:
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


def _moment(text: str) -> int:
    """Return a time in milliseconds; UTC if it has no zone. Raises RequestError."""
    try:
        moment = datetime.fromisoformat(text)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise RequestError(
            f"to is {text[:100]!r}: it must be earliest, latest, an offset or a time such as 2024-09-19T12:00:00"
        ) from None


def _known(body: Any, *names: str) -> dict[str, Any]:
    """Return the fields of a request. Raises RequestError for one that is not among `names`."""
    if not isinstance(body, dict):
        raise RequestError(f"send an object with {', '.join(names)}")
    strange = sorted(body.keys() - set(names))
    if strange:
        raise RequestError(f"there is no field {strange[0][:100]!r}; the fields are: {', '.join(names)}")
    return body


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise RequestError(f"{name} must be a text that is not empty")
    return value


def _whole(body: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = body.get(name, default)
    if value == default and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _PARTITIONS_MAX:
        raise RequestError(f"{name} must be a whole number from 1 to {_PARTITIONS_MAX}")
    return value


def _configs(values: Any, name: str) -> dict[str, str]:
    if not isinstance(values, dict) or not all(isinstance(each, str) for each in values.values()):
        raise RequestError(f'{name} must be an object of texts, such as {{"retention.ms": "60000"}}')
    return values


def _outgoing(entry: Any) -> OutgoingRecord:
    try:
        return record_from_json(json_of(entry))
    except ValueError as error:
        raise RequestError(f"a record {error}") from None
