"""Counters of the remote log, for `broker.metrics.remote_log`."""

from __future__ import annotations

import msgspec


class Counts(msgspec.Struct):
    """The counters of one topic, since the broker has started."""

    copied_bytes: int = 0
    copies: int = 0
    copy_errors: int = 0
    fetched_bytes: int = 0
    fetches: int = 0
    fetch_errors: int = 0
    fetches_waiting: int = 0
    deletions: int = 0
    delete_errors: int = 0
