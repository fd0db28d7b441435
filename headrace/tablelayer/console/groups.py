"""Consumer groups in the console, asked of the servers each time. All methods block."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

from headrace.tablelayer.client import Connection, KafkaError
from headrace.tablelayer.console.routes import Body, RequestError, Text, get, post

EARLIEST: Final = -2


class Reset(Body):
    topic: Text
    to: str | int
    dry_run: bool = False


class Groups:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @get("/api/groups")
    def groups(self) -> dict[str, Any]:
        """Consumer groups with their lag, which is null while a partition has no leader."""
        kafka = self._connection.kafka
        listed, ends = [], dict[str, Mapping[int, int]]()
        for each in kafka.list_groups()[:1000]:
            try:
                group = kafka.describe_group(each.group)
            except KafkaError:
                continue  # deleted meanwhile
            topics = {topic for topic, _ in group.positions}
            ends |= self._ends(topics - ends.keys())
            lags = [_lag(ends[topic].get(p), offset) for (topic, p), offset in group.positions.items()]
            listed.append(
                {
                    "group": each.group,
                    "state": group.state,
                    "protocol": each.protocol_type,
                    "members": len(group.members),
                    "topics": sorted(topics),
                    "lag": None if None in lags else sum(filter(None, lags)),
                }
            )
        return {"groups": listed}

    @get("/api/groups/{group}")
    def group(self, group: str) -> dict[str, Any]:
        """A group's members and positions."""
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
                    "lag": _lag(ends[topic].get(partition), offset),
                }
                for (topic, partition), offset in sorted(found.positions.items())
            ],
        }

    @post("/api/groups/{group}/reset")
    def reset(self, group: str, body: Reset) -> dict[str, Any]:
        """Set the positions of a group without members in a topic to earliest, latest, an offset or a time (ISO)."""
        topic, to = body.topic, str(body.to)
        kafka = self._connection.kafka
        begin, end = kafka.offsets(topic, EARLIEST), kafka.offsets(topic)
        if to == "earliest":
            wanted: Mapping[int, int] = begin
        elif to == "latest":
            wanted = end
        elif to.isdigit():
            wanted = {p: min(max(int(to), begin[p]), end[p]) for p in end}
        else:
            found_at = kafka.offsets(topic, _moment(to))
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
        if not body.dry_run:
            kafka.commit_offsets(group, topic, wanted)
        return {
            "topic": topic,
            "set": not body.dry_run,
            "offsets": [
                {"partition": p, "before": positions.get((topic, p)), "after": offset}
                for p, offset in sorted(wanted.items())
            ],
        }

    def _ends(self, topics: Collection[str]) -> dict[str, Mapping[int, int]]:
        """Return the ends of partitions that have a leader; nothing for topics that do not exist."""
        ranges = self._connection.kafka.offset_ranges(sorted(topics)) if topics else {}
        return {topic: {p: each.end for p, each in ranges.get(topic, {}).items()} for topic in topics}


def _lag(end: int | None, offset: int) -> int | None:
    return None if end is None else max(0, end - offset)


def _moment(text: str) -> int:
    """Return a time in milliseconds; UTC if it has no zone. Raises RequestError."""
    try:
        moment = datetime.fromisoformat(text)
        time_ms = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
        return time_ms if time_ms >= 0 else EARLIEST
    except (ValueError, OverflowError):
        raise RequestError(
            f"to is {text[:100]!r}: it must be earliest, latest, an offset or a time such as 2024-09-19T12:00:00"
        ) from None
