"""Every API of the table layer is declared, with its own messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from headrace.protocol.schema import ApiMessage
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.server.extension import TableExtension


def test_every_message_is_of_one_declared_api():
    declared = TableExtension().apis()
    assert all(each.request.API_KEY == each.response.API_KEY for each in declared)
    kinds = [kind for each in declared for kind in (each.request, each.response)]
    messages = {
        kind
        for kind in vars(m).values()
        if isinstance(kind, type) and issubclass(kind, ApiMessage) and hasattr(kind, "API_KEY")
    }
    assert len(kinds) == len(set(kinds))
    assert set(kinds) == messages


def test_only_log_scans_are_cancelled_with_their_client():
    """The scan waits and changes nothing; a request that changes something runs to its end."""
    assert [each.request for each in TableExtension().apis() if each.cancel_on_disconnect] == [
        m.ScanLogRequest
    ]


async def test_modules_for_the_first_table_are_loaded_in_a_thread() -> None:
    loaded: list[str] = []

    async def run(_load: Callable[[str], object], name: str) -> None:
        loaded.append(name)

    async def validate(_topic: str, _partitions: int, config: Mapping[str, str]) -> dict[str, str]:
        return dict(config, seen=",".join(loaded))

    extension = TableExtension()
    extension._services = cast("Any", SimpleNamespace(run=run))
    extension._checks.validate_topic = validate  # type: ignore[method-assign]
    assert (await extension.validate_topic("plain", 1, {}))["seen"] == ""
    assert (await extension.validate_topic("db.t", 1, {"table.schema": "id INT"}))["seen"] == "pyarrow"
