"""Topics and their records in the console, asked of the servers each time. All methods block."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from http import HTTPStatus
from itertools import chain
from typing import Annotated, Any, Final

import msgspec

from headrace.tablelayer.client import ConfigKind, Connection, KafkaError
from headrace.tablelayer.client.admin.produce import OutgoingRecord
from headrace.tablelayer.client.admin.record_json import record_from_json
from headrace.tablelayer.client.table_topics import tables_of_topics
from headrace.tablelayer.console.decoding import Decoder
from headrace.tablelayer.console.history import History
from headrace.tablelayer.console.routes import Body, RequestError, Rows, Text, delete, get, post
from headrace.tablelayer.console.tails import Tail, follow_topic
from headrace.tablelayer.console.values import Record, configs_of, record_of
from headrace.tablelayer.console.wanted import Wanted
from headrace.tablelayer.model.table.definition import PARTITIONED_BY_CONFIG

RECORDS_MAX: Final = 500
LOOKED_AT_MAX: Final = 50_000
"""Records that one request searches for matches. The answer says where to continue."""
LOOK_SECONDS_MAX: Final = 5.0

Count = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Partition = Annotated[int | None, "Only this partition."]
Key = Annotated[str | None, "Only records with exactly this key."]
Contains = Annotated[str | None, "Only records with this text in the value."]
Where = Annotated[str | None, "Only records for which this condition in SQL is true."]


class NewTopic(Body):
    name: Text
    partitions: Count | None = None
    replicas: Count | None = None
    configs: dict[str, str] = msgspec.field(default_factory=dict)


class TopicName(Body):
    name: Text


class TopicConfigs(Body):
    set: dict[str, str] = msgspec.field(default_factory=dict)
    reset: list[Text] = msgspec.field(default_factory=list)


class PartitionCount(Body):
    count: Count


class Records(Body):
    records: Rows


class Topics:
    def __init__(self, connection: Connection, history: History, decoder: Decoder) -> None:
        self._connection = connection
        self._history = history
        self._decoder = decoder

    @get("/api/topics")
    def topics(self, internal: Annotated[bool, "Include internal topics."] = False) -> dict[str, Any]:
        """Topics with sizes and rates. `table`: the table whose rows a topic has, all or those of one partition."""
        kafka, rates = self._connection.kafka, self._history.rates()
        found = [each for each in kafka.list_topics() if internal or not each.is_internal]
        tables = tables_of_topics(self._connection, [each.name for each in found])
        try:
            sizes = kafka.log_sizes().bytes
        except KafkaError:
            sizes = {}
        return {
            "topics": [
                {
                    "name": each.name,
                    "internal": each.is_internal,
                    "table": tables.get(each.name),
                    "partitions": len(each.leaders),
                    "under_replicated": sum(
                        len(p.in_sync) < len(p.replicas) for p in each.partitions.values()
                    ),
                    "offline": sum(p.leader < 0 for p in each.partitions.values()),
                    "bytes": sum(sizes.get(each.name, {}).values()),
                    "records_per_second": rates.get(each.name),
                }
                for each in found
            ]
        }

    @get("/api/topics/{topic}")
    def topic(self, topic: str) -> dict[str, Any]:
        """A topic with its partitions."""
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
            "table": tables_of_topics(self._connection, [topic]).get(topic)
            if found.configs_withheld
            else found.table,
            "partitioned": PARTITIONED_BY_CONFIG in found.configs,
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

    @get("/api/topics/{topic}/configs")
    def configs(self, topic: str) -> dict[str, Any]:
        """A topic's configurations with their documentation."""
        return {"configs": configs_of(self._connection, ConfigKind.TOPIC, topic)}

    @post("/api/topics")
    def create(self, body: NewTopic) -> dict[str, Any]:
        """Create a topic. Partitions and replicas that are left out are the server's defaults."""
        made = self._connection.kafka.create_topic(
            body.name, partitions=body.partitions or -1, replicas=body.replicas or -1, configs=body.configs
        )
        return {"name": made.name, "partitions": len(made.partitions)}

    @delete("/api/topics/{topic}")
    def drop(self, topic: str, body: TopicName) -> dict[str, Any]:
        """Delete a topic with its records. The body repeats the name. A table is not deleted so."""
        if body.name != topic:
            raise RequestError(f'send {{"name": "{topic}"}} to delete this topic with its records')
        table = self._connection.kafka.describe_topic(topic).table
        if table is not None:
            what = (
                "a table: drop it with DROP TABLE"
                if table == topic
                else f"a partition of {table}: drop it there"
            )
            raise RequestError(f"{topic} is {what} in headrace sql", HTTPStatus.CONFLICT)
        self._connection.kafka.delete_topic(topic)
        return {"name": topic}

    @post("/api/topics/{topic}/configs")
    def alter(self, topic: str, body: TopicConfigs) -> dict[str, Any]:
        """Set some configurations of a topic, and reset others to their defaults: all or none."""
        if not body.set and not body.reset:
            raise RequestError(
                'send {"set": {"retention.ms": "60000"}, "reset": ["cleanup.policy"]}, or one of both'
            )
        self._connection.kafka.alter_configs(ConfigKind.TOPIC, topic, body.set, body.reset)
        return {"set": sorted(body.set), "reset": sorted(body.reset)}

    @post("/api/topics/{topic}/partitions")
    def add_partitions(self, topic: str, body: PartitionCount) -> dict[str, Any]:
        """Increase the number of a topic's partitions. Records with a key may go to another one from then on."""
        self._connection.kafka.add_partitions(topic, body.count)
        return {"name": topic, "partitions": body.count}

    @get("/api/topics/{topic}/records")
    def records(
        self,
        topic: str,
        partition: Partition = None,
        offset: Annotated[int | None, "First offset, in one partition."] = None,
        timestamp: Annotated[int | None, "Earliest time, in milliseconds since 1970."] = None,
        key: Key = None,
        contains: Contains = None,
        where: Where = None,
        limit: Annotated[int, "Maximum number of results."] = 100,
        newest: Annotated[bool, "Return the newest records."] = False,
    ) -> dict[str, Any]:
        """Matching records in order: the newest, or from an offset, a time or the beginning on. Keys and values of a
        schema registry's wire format are also decoded.
        """
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
        wanted = self._wanted(topic, key, contains, where)
        found, after, looked_at = self._matching(topic, start, end, wanted, limit, newest)
        found.sort(key=lambda each: each.place)
        chosen = found[-limit:] if newest else found
        self._decoder.decode([piece for each in chosen for piece in each.pieces])
        return {
            "records": [each.shown for each in chosen],
            "next": {str(p): offset for p, offset in after.items()},
            "ends": {str(p): end[p] for p in places},
            "without_leader": sorted(described.partitions.keys() - ranges.keys()),
            "looked_at": looked_at,
            "not_decoded": wanted.not_decoded,
            "complete": all(after[p] >= end[p] for p in places),
        }

    def _wanted(self, topic: str, key: str | None, contains: str | None, where: str | None) -> Wanted:
        return Wanted(self._connection, topic, key, contains, where, self._decoder.search())

    def _matching(
        self,
        topic: str,
        start: Mapping[int, int],
        end: Mapping[int, int],
        wanted: Wanted,
        limit: int,
        newest: bool,
    ) -> tuple[list[Record], dict[int, int], int]:
        """Return (matching records, next offset by partition, number of records searched).

        The search ends at the first `limit` matches, or keeps the `newest` of each partition.
        """
        at, looked_at = dict(start), 0
        found: dict[int, deque[Record]] = {p: deque(maxlen=limit) for p in at}
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
                if is_full or time.monotonic() >= until:
                    break
            else:
                at.update(after)
            if looked_at >= LOOKED_AT_MAX or time.monotonic() >= until:
                break
        return list(chain.from_iterable(found.values())), at, looked_at

    @get("/api/topics/{topic}/tail", streams=True)
    def tail(
        self,
        topic: str,
        partition: Partition = None,
        key: Key = None,
        contains: Contains = None,
        where: Where = None,
    ) -> Callable[[Tail], None]:
        """New records as server-sent events, four a second: the newest of each, and how many came."""
        return follow_topic(
            self._connection,
            topic,
            partition,
            lambda: self._wanted(topic, key, contains, where),
            self._decoder.decode,
        )

    @post("/api/topics/{topic}/records")
    def produce(self, topic: str, body: Records) -> dict[str, Any]:
        """Write records with value, key, headers and partition. A text is written as it is, another value as JSON."""
        places = self._connection.kafka.produce(topic, [_outgoing(each) for each in body.records])
        return {"written": [{"partition": partition, "offset": offset} for partition, offset in places]}


def _outgoing(entry: msgspec.Raw) -> OutgoingRecord:
    try:
        return record_from_json(bytes(entry))
    except ValueError as error:
        raise RequestError(f"a record {error}") from None
