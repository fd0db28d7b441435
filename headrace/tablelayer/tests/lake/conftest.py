"""Streams of these tests look at the lake in every batch: nothing waits for a time."""

from __future__ import annotations

import pytest

from headrace.tablelayer.spark import partitioned_stream


@pytest.fixture(autouse=True)
def streams_ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioned_stream, "_ASKED_EVERY_S", 0.0)
