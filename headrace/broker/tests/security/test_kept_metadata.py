"""Metadata for all topics with an authorizer: answers are kept only for principals that see the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.broker.security.rights import Operation, ResourceType
from headrace.broker.tests.security.people import allow, client, creation, grant, revoke_all, secured_broker
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each answer that was encoded: its topics."""
    found: list[int] = []
    original = MetadataResponse.encode_in_slices

    def encode(self, *arguments):
        found.append(len(self.topics))
        return original(self, *arguments)

    monkeypatch.setattr(MetadataResponse, "encode_in_slices", encode)
    return found


async def shown(who, **options) -> list[str]:
    response = await who.send(MetadataRequest(topics=None, **options), 12)
    return [topic.name for topic in response.topics]


async def test_principals_with_the_same_view_share_an_answer(tmp_path: Path, encodings: list[int]) -> None:
    async with secured_broker(tmp_path) as admin:
        for name in ("a", "b", "c"):
            await admin.create_topic(name)
        await allow(admin, Operation.DESCRIBE, ResourceType.TOPIC, "a")
        for who in ("bob", "eve"):
            await grant(admin, creation(Operation.READ, ResourceType.TOPIC, "a", who=f"User:{who}"))
        for _ in range(3):
            for who in ("ann", "bob", "eve"):
                assert await shown(client(admin, who)) == ["a"]
            assert await shown(client(admin, "dan")) == []
            assert await shown(admin) == ["a", "b", "c"]
        assert sorted(encodings) == [0, 1, 3]


async def test_a_kept_answer_carries_no_right_past_its_acl(tmp_path: Path, encodings: list[int]) -> None:
    async with secured_broker(tmp_path) as admin:
        await admin.create_topic("a")
        ann = client(admin, "ann")
        assert await shown(ann) == []
        await allow(admin, Operation.READ, ResourceType.TOPIC, "a")
        assert await shown(ann) == ["a"]
        assert await shown(client(admin, "ann", "10.0.0.8")) == ["a"]
        await revoke_all(admin)
        assert await shown(ann) == []
        await grant(admin, creation(Operation.READ, ResourceType.TOPIC, "a", host="10.0.0.8"))
        assert await shown(ann) == []
        assert await shown(client(admin, "ann", "10.0.0.8")) == ["a"]
        await admin.create_topic("b")
        assert await shown(admin) == ["a", "b"]
        await admin.context.topics.delete_topic("a")
        assert await shown(client(admin, "ann", "10.0.0.8")) == []
        assert await shown(admin) == ["b"]


async def test_authorized_operations_are_not_shared_between_principals(
    tmp_path: Path, encodings: list[int]
) -> None:
    async with secured_broker(tmp_path) as admin:
        await admin.create_topic("a")
        await allow(admin, Operation.DESCRIBE, ResourceType.TOPIC, "a")
        await grant(admin, creation(Operation.WRITE, ResourceType.TOPIC, "a", who="User:bob"))

        async def operations(name: str) -> int:
            request = MetadataRequest(topics=None, include_topic_authorized_operations=True)
            (topic,) = (await client(admin, name).send(request, 12)).topics
            return topic.topic_authorized_operations

        describe, write = 1 << Operation.DESCRIBE, 1 << Operation.WRITE
        for _ in range(2):
            assert await operations("ann") == describe
            assert await operations("bob") == describe | write
        assert await shown(client(admin, "ann")) == ["a"]
        assert len(encodings) == 3


async def test_kept_metadata_is_bounded_in_bytes(
    tmp_path: Path, encodings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.broker.api.metadata.ALL_KEPT_BYTES_MAX", 3000)
    async with secured_broker(tmp_path) as admin:
        for number in range(12):
            await admin.create_topic(f"t{number}", 20)
            await grant(
                admin, creation(Operation.READ, ResourceType.TOPIC, f"t{number}", who=f"User:u{number}")
            )
        for _ in range(2):
            for number in range(12):
                assert await shown(client(admin, f"u{number}")) == [f"t{number}"]
        assert len(encodings) == 24, "twelve of a kilobyte are not kept"
        for _ in range(3):
            assert await shown(client(admin, "u11")) == ["t11"]
        assert len(encodings) == 24
        declaration = next(each for each in admin.broker.dispatcher.declarations if each.key == 3)
        bodies = declaration.handler.__self__._all
        assert 0 < sum(len(part) for body in bodies._bodies.values() for part in body) <= 3000
