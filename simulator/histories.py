"""Histories of clients and the rules for them: pure functions from histories to problems, empty if there are none.

A history has each client's requests and answers, whether a simulation ran the clients or killed processes did. An
outcome is OK (acknowledged), FAILED (it certainly had no effect) or UNKNOWN (it may have had one).

- C1, delivery: acknowledged records exist once; records that were not sent, or that failed, do not exist.
- C2, offsets: an offset has one value for every reader at all times; a producer's records keep their order; a reader
  goes forward; only control records and compaction leave gaps.
- C3, logs: batches follow one another and are whole; leader epochs never go back; indexes agree with a scan.
- C6, transactions: all records of a transaction are there or none, as it ended.

A problem is a sentence, and all of them are returned, so that one run shows everything.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path

import crc32c

from headrace.protocol.records.header import ATTRIBUTES_POSITION, CRC_POSITION, iter_headers

PROBLEMS_MAX = 10

Place = tuple[str, int]
"""Topic and partition."""
Log = Mapping[Place, Sequence[tuple[int, bytes]]]
"""(offset, value) of every record that a reader found from the start, in the order of arrival."""


class Outcome(Enum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Send:
    """A record that a producer sent; values are unique. `offset` is -1 unless it was acknowledged with one.

    Sends of one producer to one place are in the order in which it made them.
    """

    producer: str
    place: Place
    value: bytes
    outcome: Outcome
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Poll:
    """A record that a reader got; those of one reader are in the order of arrival."""

    reader: str
    place: Place
    offset: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Transaction:
    """The records that one transaction wrote. UNKNOWN: its end was not answered. FAILED: it was aborted."""

    name: str
    records: tuple[tuple[Place, bytes], ...]
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    base_offset: int
    last_offset: int
    leader_epoch: int
    position: int
    is_whole: bool = True


def check_delivery(sends: Iterable[Send], found: Log, *, idempotent: bool = True) -> list[str]:
    """Check C1. Without idempotence a record may be there more than once."""
    counts = {(place, value): count for place, log in found.items() for value, count in _counted(log)}
    sent: set[tuple[Place, bytes]] = set()
    problems = []
    for send in sends:
        key = (send.place, send.value)
        sent.add(key)
        count = counts.get(key, 0)
        if send.outcome is Outcome.OK and not count:
            problems.append(
                f"{_name(send.place)}: {send.value!r} was acknowledged at {send.offset} and does not exist"
            )
        if send.outcome is Outcome.FAILED and count:
            problems.append(f"{_name(send.place)}: {send.value!r} had failed and is there")
        if count > 1 and idempotent:
            problems.append(f"{_name(send.place)}: {send.value!r} is there {count} times")
    problems += [
        f"{_name(place)}: no producer sent {value!r}" for place, value in counts if (place, value) not in sent
    ]
    return problems


def check_offsets(
    sends: Sequence[Send], polls: Iterable[Poll], found: Log, *, gaps_allowed: bool = False
) -> list[str]:
    """Check C2. `gaps_allowed`: there are control records, or compaction removed some."""
    values: dict[tuple[Place, int], bytes] = {}
    problems = []

    def see(place: Place, offset: int, value: bytes, who: str) -> None:
        if values.setdefault((place, offset), value) != value:
            problems.append(f"{_name(place)} offset {offset}: {values[place, offset]!r}, but {who} {value!r}")

    for send in sends:
        if send.outcome is Outcome.OK and send.offset >= 0:
            see(send.place, send.offset, send.value, f"the acknowledgement to {send.producer} says")
    positions: dict[tuple[str, Place], int] = {}
    for poll in polls:
        see(poll.place, poll.offset, poll.value, f"{poll.reader} got")
        before = positions.get((poll.reader, poll.place), -1)
        if poll.offset <= before:
            problems.append(f"{_name(poll.place)}: {poll.reader} got {poll.offset} after {before}")
        positions[poll.reader, poll.place] = poll.offset
    for place, log in found.items():
        for offset, value in log:
            see(place, offset, value, "at the end it is")
        for (before, _), (offset, _) in pairwise(log):
            if offset <= before or (offset != before + 1 and not gaps_allowed):
                problems.append(f"{_name(place)}: offset {offset} follows {before}")
    return problems + _order_problems(sends, found)


def _order_problems(sends: Iterable[Send], found: Log) -> list[str]:
    offsets = {(place, value): offset for place, log in found.items() for offset, value in log}
    latest: dict[tuple[str, Place], tuple[int, bytes]] = {}
    problems = []
    for send in sends:
        offset = offsets.get((send.place, send.value))
        if offset is None:
            continue
        before = latest.get((send.producer, send.place))
        if before is not None and offset < before[0]:
            problems.append(f"{_name(send.place)}: {send.producer} sent {send.value!r} after {before[1]!r}")
        latest[send.producer, send.place] = (offset, send.value)
    return problems


def check_log(batches: Sequence[LoggedBatch], index: Iterable[tuple[int, int]] = ()) -> list[str]:
    """Check C3 of one segment. `index` has (last offset, position) of some batches."""
    problems = [f"the batch at {batch.base_offset} is damaged" for batch in batches if not batch.is_whole]
    for before, batch in pairwise(batches):
        if batch.base_offset != before.last_offset + 1:
            problems.append(f"offset {batch.base_offset} follows {before.last_offset}")
        if batch.leader_epoch < before.leader_epoch:
            problems.append(
                f"epoch {batch.leader_epoch} at {batch.base_offset} follows {before.leader_epoch}"
            )
    places = {batch.last_offset: batch.position for batch in batches}
    problems += [
        f"the index has offset {offset} at byte {position}, a scan finds it at {places.get(offset)}"
        for offset, position in index
        if places.get(offset) != position
    ]
    return problems


def check_transactions(transactions: Iterable[Transaction], committed: Log) -> list[str]:
    """Check C6. `committed` are the records that a read_committed reader found."""
    there = {(place, value) for place, log in committed.items() for _, value in log}
    problems = []
    for transaction in transactions:
        count = sum(record in there for record in transaction.records)
        if transaction.outcome is Outcome.FAILED and count:
            problems.append(f"{transaction.name} was aborted, and {count} of its records are read")
        elif transaction.outcome is Outcome.OK and count < len(transaction.records):
            problems.append(
                f"{transaction.name} was committed, and {count} of {len(transaction.records)} are read"
            )
        elif 0 < count < len(transaction.records):
            problems.append(f"{transaction.name} is torn: {count} of {len(transaction.records)} are read")
    return problems


def check_position(acknowledged: int, unknown: Container[int], kept: int) -> list[str]:
    """Check a group that commits ever higher offsets: the last acknowledged one is kept, or a higher one.

    It may also be an unanswered one: that request was still under way on an abandoned connection, and arrived after
    those of the next connection.
    """
    if kept >= acknowledged or kept in unknown:
        return []
    return [f"the group had committed {acknowledged}, and {kept} is left"]


def read_segment(path: Path) -> tuple[list[LoggedBatch], list[tuple[int, int]]]:
    """Return the batches of a segment file and the entries of its index, for `check_log`."""
    data = path.read_bytes()
    batches = []
    for position, header in iter_headers(data):
        crc = int.from_bytes(data[position + CRC_POSITION : position + ATTRIBUTES_POSITION], "big")
        content = data[position + ATTRIBUTES_POSITION : position + header.size]
        batches.append(
            LoggedBatch(
                header.base_offset,
                header.last_offset,
                header.partition_leader_epoch,
                position,
                crc32c.crc32c(content) == crc,
            )
        )
    base, entries = int(path.stem), path.with_suffix(".index")
    index = entries.read_bytes() if entries.exists() else b""
    return batches, [
        (base + int.from_bytes(index[at : at + 4], "big"), int.from_bytes(index[at + 4 : at + 8], "big"))
        for at in range(0, len(index), 8)
    ]


def told(problems: Sequence[str]) -> str:
    """Return the first problems and their number, as text."""
    return "\n".join([*problems[:PROBLEMS_MAX], f"{len(problems)} problems"]) if problems else ""


def _counted(log: Sequence[tuple[int, bytes]]) -> Iterable[tuple[bytes, int]]:
    return Counter(value for _, value in log).items()


def _name(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def by_place(polls: Iterable[Poll]) -> dict[Place, list[tuple[int, bytes]]]:
    """Return the polls of one reader as a `Log`."""
    logs: dict[Place, list[tuple[int, bytes]]] = defaultdict(list)
    for poll in polls:
        logs[poll.place].append((poll.offset, poll.value))
    return dict(logs)
