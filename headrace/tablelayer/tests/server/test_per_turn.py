"""Work in turns, never for all topics at once: no line of the server runs for each topic in one turn of the event loop.

A server with few and one with many topics do nothing but their periodic work, while the lines of Headrace's own code
are counted for each turn. All clients wait for a turn.
"""

from __future__ import annotations

import asyncio
from asyncio.events import Handle
from collections import Counter
from pathlib import Path

from headrace.broker.cluster.topic_changes import NewTopic
from headrace.tablelayer.server import extension
from headrace.tablelayer.tests.lines import Counts, Lines, check_per_row
from headrace.tablelayer.tests.server.tables import Tables, tables

FEW, MANY = 20, 120
DEADLINE_SECONDS = 120.0
ROUNDS = {
    "LocalReplicas.all_partitions",
    "LogCleaner._compactable",
    "Calendar.check_if_due",
    "LakeSubjects.warn_without_lake",
    "TableExtension._expire_rows",
}
"""Functions that run once in each round of the periodic work."""
OFTEN = {
    "log.initial.task.delay.ms": "0",
    "log.cleaner.backoff.ms": "50",
    "log.retention.check.interval.ms": "50",
    "table.kv.ttl.check.interval.ms": "50",
    "auto-partition.check.interval.ms": "50",
}
ALLOWED = {
    "LocalReplicas.all_partitions": "a list is copied before the turns over it begin: 30 ns a partition",
    "TopicIndex.setting": "the same, for topics that set a configuration",
}
"""Functions that may run for each topic in one turn, with the reason. Any other one is a defect."""


async def largest_turns(monkeypatch) -> Counts:
    """Return how often each line ran in the turn in which it ran most often, over two rounds of all periodic work."""
    largest, rounds = Counts(), Counter()
    run = Handle._run

    with Lines(threads=False) as lines:

        def counted(handle: Handle) -> None:
            run(handle)
            taken = lines.taken()
            rounds.update(ROUNDS & {code.co_qualname for code, _ in taken})
            for line, times in taken.items():
                largest[line] = max(largest[line], times)

        monkeypatch.setattr(Handle, "_run", counted)
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while min(rounds[each] for each in ROUNDS) < 2:  # noqa: ASYNC110 - nobody is told
                    await asyncio.sleep(0.05)
        finally:
            monkeypatch.undo()
    return largest


async def create(server: Tables, names: range) -> None:
    topics = [NewTopic(f"plain-{n}", 1, {}) for n in names]
    topics += [NewTopic(f"compacted-{n}", 1, {"cleanup.policy": "compact"}) for n in names]
    await server.broker.broker.context.topics.create_topics(topics)
    for n in names[::4]:
        await server.create("id INT, PRIMARY KEY (id) NOT ENFORCED", name=f"keyed{n}")


async def test_no_line_runs_for_each_topic_in_one_turn_of_the_loop(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(extension, "_CHECK_SECONDS", 0.05)
    async with tables(tmp_path, OFTEN) as server:
        await create(server, range(FEW))
        few = await largest_turns(monkeypatch)
        monkeypatch.setattr(extension, "_CHECK_SECONDS", 0.05)
        await create(server, range(FEW, MANY))
        many = await largest_turns(monkeypatch)
    more = (MANY - FEW) // 4
    check_per_row({"turn": few}, {"turn": many}, more, ALLOWED)
