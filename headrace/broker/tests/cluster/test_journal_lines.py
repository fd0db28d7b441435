"""A journal that cannot be created is logged once a minute, however often clients ask for it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from headrace.broker.cluster.journal_topic import JournalTopic
from headrace.protocol.errors import ErrorCode, KafkaError


async def test_a_journal_that_cannot_be_created_is_told_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the metadata cannot be changed: the disk is full")

    journal: Any = JournalTopic.__new__(JournalTopic)
    journal.name = "__journal_of_this_test"
    with caplog.at_level(logging.ERROR, "headrace.journal"):
        for _ in range(5):
            journal._creation = creation = asyncio.ensure_future(fail())
            await asyncio.wait([creation])
            journal._created(creation)
            assert journal._creation is None, "the next client tries again"
    told = [each.getMessage() for each in caplog.records if "__journal_of_this_test" in each.getMessage()]
    assert len(told) == 1
    assert told[0].endswith("the disk is full")
