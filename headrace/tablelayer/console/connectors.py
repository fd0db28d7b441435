"""Kafka Connect in the console: connectors and tasks with their states, by its REST interface. All methods block."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import msgspec

from headrace.tablelayer.console.rest import RestService
from headrace.tablelayer.console.routes import Body, RequestError, get, post

_SECRET: Final = re.compile(
    r"passw|pwd|secret|token|credential|jaas|private|passphrase|user\.info|(?:^|[._-])(?:api|access|account|sas|ssl)?[._-]?key$",
    re.IGNORECASE,
)
"""Names of configurations whose values are not shown: Connect gives passwords as they were set."""
_TRACE_MAX: Final = 4000
_WORKER: Final = "worker_id"


class Restart(Body):
    """`task` None: the connector itself, with its tasks if `tasks` or, of those, the failed ones alone if `failed`."""

    task: Annotated[int, msgspec.Meta(ge=0)] | None = None
    tasks: bool = False
    failed: bool = False


class Connect(RestService):
    absent = "the console does not know a Kafka Connect: start it with --connect URL"

    @get("/api/connectors")
    def connectors(self) -> dict[str, Any]:
        """The connectors of Kafka Connect with their states."""
        found = self._asked.get_object("connectors", query="?expand=status&expand=info")
        return {
            "url": self._asked.url,
            "version": self._asked.get_object("").get("version"),
            "connectors": [
                _listed(name, each.get("status"), each.get("info")) for name, each in sorted(found.items())
            ],
        }

    @get("/api/connectors/{connector}")
    def connector(self, connector: str) -> dict[str, Any]:
        """A connector with its tasks, their errors, and its configuration without secrets."""
        info = self._asked.get_object("connectors", connector)
        listed = _listed(connector, self._asked.get("connectors", connector, "status"), info)
        try:
            topics = self._asked.get("connectors", connector, "topics")[connector]["topics"]
        except (RequestError, KeyError, TypeError):  # it does not keep track of them
            topics = []
        configs = info.get("config") or {}
        return {
            **listed,
            "topics": sorted(topics),
            "configs": [
                {"name": name, "value": None if hidden else value, "sensitive": hidden}
                for name, value in sorted(configs.items())
                for hidden in (bool(_SECRET.search(name)),)
            ],
        }

    @post("/api/connectors/{connector}/restart")
    def restart(self, connector: str, body: Restart) -> dict[str, Any]:
        """Restart a connector, with its tasks or the failed ones if the request says so, or one task."""
        if body.task is not None:
            if body.tasks or body.failed:
                raise RequestError("give task, or tasks and failed, but not both")
            self._asked.post("connectors", connector, "tasks", body.task, "restart")
        else:
            tasks, failed = (str(each).lower() for each in (body.tasks, body.failed))
            query = f"?includeTasks={tasks}&onlyFailed={failed}"
            self._asked.post("connectors", connector, "restart", query=query)
        return {"connector": connector, "task": body.task}


def _listed(name: str, status: Any, info: Any) -> dict[str, Any]:
    status, info = (each if isinstance(each, dict) else {} for each in (status, info))
    own = status.get("connector") or {}
    return {
        "name": name,
        "kind": status.get("type") or info.get("type"),
        "class": (info.get("config") or {}).get("connector.class"),
        "state": own.get("state"),
        "worker": own.get(_WORKER),
        "trace": _cut(own.get("trace")),
        "tasks": [
            {
                "task": each.get("id"),
                "state": each.get("state"),
                "worker": each.get(_WORKER),
                "trace": _cut(each.get("trace")),
            }
            for each in status.get("tasks") or ()
        ],
    }


def _cut(trace: Any) -> str | None:
    return None if trace is None else str(trace)[:_TRACE_MAX]
