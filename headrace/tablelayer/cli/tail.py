"""The records that `headrace topics tail` shows: places, limits and filters."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import typer

from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.cli.words import moment_of

if TYPE_CHECKING:
    from headrace.tablelayer.client import Connection, KafkaRecord
    from headrace.tablelayer.client.admin.cluster_state import OffsetRange

_COUNT = 10
_WAIT_MS = 500


@dataclass(frozen=True)
class Selection:
    """The wanted records. `place` is an offset, a time or earliest; None: the last `count` of each partition."""

    count: int | None
    place: str | None
    end_at: str | None
    partitions: Sequence[int] | None
    key: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    follow: bool
    is_offset: bool = field(default=False)

    @classmethod
    def of(
        cls,
        *,
        count: int | None,
        partitions: Sequence[int] | None,
        offset: int | None,
        begin_at: str | None,
        end_at: str | None,
        key: str | None,
        headers: Sequence[str],
        follow: bool,
    ) -> Selection:
        """Return the selection of a command line. Raises CommandError for a contradiction."""
        if offset is not None and begin_at is not None:
            raise CommandError("pass --offset or --from, not both")
        if follow and end_at is not None:
            raise CommandError("--follow never ends: pass it without --to")
        pairs = [each.partition("=") for each in headers]
        return cls(
            count,
            str(offset) if offset is not None else begin_at,
            end_at,
            partitions,
            None if key is None else key.encode("utf-8", "surrogateescape"),
            [(name, value.encode() if equals else None) for name, equals, value in pairs],
            follow,
            is_offset=offset is not None,
        )

    @property
    def is_search(self) -> bool:
        """Whether records are chosen by their content."""
        return self.key is not None or bool(self.headers)

    def takes(self, record: KafkaRecord) -> bool:
        """Return whether a record has the wanted key and headers."""
        if self.key is not None and record.key != self.key:
            return False
        return all(
            any(name == one and (value is None or value == other) for one, other in record.headers)
            for name, value in self.headers
        )


def chosen_partitions(
    connection: Connection, topic: str, numbers: Sequence[int] | None
) -> dict[int, OffsetRange]:
    """Return the offsets of the wanted partitions. Tells the user of those that have no leader.

    Raises CommandError for a partition that the topic does not have.
    """
    there = connection.kafka.describe_topic(topic).partitions
    missing = [each for each in numbers or () if each not in there]
    if missing:
        raise CommandError(f"{topic} has no partition {missing[0]}: it has 0 to {len(there) - 1}")
    ranges = connection.kafka.offset_ranges([topic]).get(topic, {})
    wanted = sorted(set(numbers)) if numbers else sorted(there)
    dark = [str(each) for each in wanted if each not in ranges]
    if dark:
        typer.echo(f"without a leader, and left out: partition {', '.join(dark)} of {topic}", err=True)
    return {each: ranges[each] for each in wanted if each in ranges}


def offsets_at(
    connection: Connection, topic: str, ranges: Mapping[int, OffsetRange], place: str, option: str
) -> dict[int, int]:
    """Return the offset of a place in each partition: earliest, latest, an offset, or a time."""
    if place == "earliest":
        return {p: each.first for p, each in ranges.items()}
    if place == "latest":
        return {p: each.end for p, each in ranges.items()}
    if place.isdigit():
        return dict.fromkeys(ranges, int(place))
    return _at_time(connection, topic, ranges, moment_of(place, option))


def _at_time(
    connection: Connection, topic: str, ranges: Mapping[int, OffsetRange], time_ms: int
) -> dict[int, int]:
    found = connection.kafka.offsets(topic, time_ms, partitions=list(ranges)) if ranges else {}
    return {p: each.end if found.get(p, -1) < 0 else found[p] for p, each in ranges.items()}


def tail_topic(connection: Connection, topic: str, wanted: Selection) -> Iterator[Sequence[KafkaRecord]]:
    """Iterate over the wanted records, some at a time: in order of partition and offset if they have an end."""
    ranges = chosen_partitions(connection, topic, wanted.partitions)
    start, end = _bounds(connection, topic, ranges, wanted)
    if wanted.follow:
        yield from _followed(connection, topic, start, ranges, wanted)
        return
    if wanted.place is None:
        last: dict[int, deque[KafkaRecord]] = {p: deque(maxlen=_count(wanted)) for p in ranges}
        for records in _until(connection, topic, start, end):
            for each in filter(wanted.takes, records):
                last[each.partition].append(each)
        if any(last.values()):
            yield [each for number in sorted(last) for each in last[number]]
        return
    for number in start:  # one after the other, so that a long topic is shown in order and not kept
        left = wanted.count
        for records in _until(connection, topic, {number: start[number]}, end):
            found = list(filter(wanted.takes, records))[:left]
            if found:
                yield found
            if left is not None:
                left -= len(found)
                if left <= 0:
                    break


def _count(wanted: Selection) -> int:
    return _COUNT if wanted.count is None else wanted.count


def _bounds(
    connection: Connection, topic: str, ranges: Mapping[int, OffsetRange], wanted: Selection
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the first and the last offset of each partition to read, the last one exclusive."""
    end = {p: each.end for p, each in ranges.items()}
    if wanted.end_at is not None:
        at = _at_time(connection, topic, ranges, moment_of(wanted.end_at, "--to"))
        end = {p: min(at[p], end[p]) for p in end}
    if wanted.place is None:
        first = {
            p: each.first if wanted.is_search else max(each.first, end[p] - _count(wanted))
            for p, each in ranges.items()
        }
    elif wanted.is_offset:
        first = dict.fromkeys(ranges, int(wanted.place))
    elif wanted.place == "earliest":
        first = {p: each.first for p, each in ranges.items()}
    else:
        first = _at_time(connection, topic, ranges, moment_of(wanted.place, "--from"))
    return {p: max(first[p], ranges[p].first) for p in ranges}, end


def _until(
    connection: Connection, topic: str, start: Mapping[int, int], end: Mapping[int, int]
) -> Iterator[list[KafkaRecord]]:
    at = dict(start)
    while unread := {p: offset for p, offset in at.items() if offset < end[p]}:
        records, after = connection.kafka.read(topic, unread, max_wait_ms=_WAIT_MS)
        if after == unread:
            raise CommandError(
                f"{topic} returns no records before the end of its log: it may have been deleted"
            )
        yield [each for each in records if each.offset < end[each.partition]]
        at |= after


def _followed(
    connection: Connection,
    topic: str,
    start: Mapping[int, int],
    ranges: Mapping[int, OffsetRange],
    wanted: Selection,
) -> Iterator[list[KafkaRecord]]:
    at = dict(start)
    if not at:
        raise CommandError(f"no partition of {topic} has a leader now")
    if wanted.place is None and wanted.is_search:  # new records only: no search of existing ones
        at = {p: each.end for p, each in ranges.items()}
    while True:
        records, after = connection.kafka.read(topic, at, max_wait_ms=_WAIT_MS)
        found = list(filter(wanted.takes, records))
        if found:
            yield found
        at |= after
