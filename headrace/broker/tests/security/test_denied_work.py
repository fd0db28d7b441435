"""A hidden resource takes the broker as long as a missing one, so that the time of an answer reveals nothing.

The test counts the calls of functions on the event loop between a request and its answer, which are the same on every
machine. The existing resource has many partitions, records, members and configurations, which must not change the
number of calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from headrace.broker.runtime.ports import Clock
from headrace.broker.security.rights import Operation, ResourceType
from headrace.broker.tests.security.people import SECURED, client, creation, grant, revoke_all
from headrace.broker.tests.security.test_matrix import BATCH, CASES, DESCRIBE, Case, Names, commit
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from simulator.call_clock import counted_calls
from simulator.direct import DirectBroker, direct_broker

TOPIC, GROUP, TRANSACTION = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
PARTITIONS = 60
OF_NAMES_MAX, OF_IDS_MAX = 5, 100
"""Maximum difference of calls between the two.

An existing id takes two more questions about rights and a line for the audit log. An id cannot be guessed.
"""
ATTEMPTS_MIN, ATTEMPTS_MAX = 3, 12
THERE = Names("t-there", "g-there", "x-there", "t-there", UUID(int=0))
MISSING = Names("t-other", "g-other", "x-other", "t-other", UUID(int=77 << 70))


class StandingClock(Clock):
    """A clock that stands still, so that work in slices never rests."""

    def time_ms(self) -> int:
        return 1_750_000_000_000

    def monotonic(self) -> float:
        return 1000.0


async def calls_of(
    broker: DirectBroker, version: int | None, there: Any, missing: Any, most: int = OF_NAMES_MAX
) -> tuple[int, int]:
    """Return the lowest number of calls of some attempts at each.

    The first attempt caches some results, and the loop may do other work in one of them: where the numbers differ there
    are more attempts.
    """
    least = [1 << 30, 1 << 30]
    for attempt in range(ATTEMPTS_MAX):
        for index, request in enumerate((there, missing)):
            with counted_calls() as count:
                async with asyncio.timeout(60):
                    await broker.send(request, version)
            least[index] = min(least[index], count.calls)
        if attempt >= ATTEMPTS_MIN - 1 and abs(least[0] - least[1]) <= most:
            break
    return least[0], least[1]


def with_one_changed(names: Names, resource_type: ResourceType) -> Names:
    """Return the existing names, with the resource of this type replaced by a missing one."""
    if resource_type == TOPIC:
        return replace(names, topic=MISSING.topic, fresh=MISSING.fresh, topic_id=MISSING.topic_id)
    if resource_type == GROUP:
        return replace(names, group=MISSING.group)
    return replace(names, transaction=MISSING.transaction)


async def furnished(admin: DirectBroker) -> Names:
    """Create one of each resource, large."""
    image = await admin.create_topic(THERE.topic, PARTITIONS, retention_ms="1000000")
    names = replace(THERE, topic_id=image.topic_id)
    for _ in range(20):
        await admin.produce(names.topic, BATCH)
    await admin.send(FindCoordinatorRequest(key_type=0, coordinator_keys=[names.group]))
    begun = await admin.send(
        InitProducerIdRequest(transactional_id=names.transaction, transaction_timeout_ms=60_000)
    )
    assert begun.error_code == 0
    await admin.send(commit(names), 9)
    return names


def asks_by_id(case: Case, names: Names) -> bool:
    """Return whether the answer differs for another id of the same name."""
    other = replace(names, topic_id=MISSING.topic_id)
    version = type(case.request(names)).MAX_VERSION if case.version is None else case.version
    return case.request(names).encode(version) != case.request(other).encode(version)


async def test_a_denied_request_costs_the_same_for_missing_resources(tmp_path: Path) -> None:
    checked, found = 0, []
    config = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}
    async with direct_broker(tmp_path, {**SECURED, **config}, clock=StandingClock()) as broker:
        admin = client(broker, "admin")
        names = await furnished(admin)
        for key, case, right in hidden_rights():
            ann = client(
                admin, "ann", f"10.0.0.{checked}"
            )  # the audit log limits the refusals of one principal
            others = [each for each in case.rights if each != right]
            await grant(
                admin, *(creation(operation, kind, names.of(kind, case)) for operation, kind in others)
            )
            most = OF_IDS_MAX if asks_by_id(case, names) else OF_NAMES_MAX
            without = case.request(with_one_changed(names, right[1]))
            there, missing = await calls_of(ann, case.version, case.request(names), without, most)
            checked += 1
            if abs(there - missing) > most:
                found.append(
                    f"API {key} without {right[0].name} {right[1].name}: {there} calls, else {missing}"
                )
            await revoke_all(admin)
    assert checked > 60
    assert not found, "\n".join(found)


def hidden_rights() -> Iterator[tuple[int, Case, tuple[Operation, ResourceType]]]:
    """Return the rights without which a resource is hidden."""
    for key, cases in sorted(CASES.items()):
        for case in cases:
            for right in case.rights:
                of_another = (DESCRIBE, right[1]) in case.rights and right[
                    0
                ] is not DESCRIBE  # DESCRIBE makes it visible
                if case.is_as_missing and right[1] in (TOPIC, GROUP, TRANSACTION) and not of_another:
                    yield key, case, right
