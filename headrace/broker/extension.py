"""The only interface through which the broker is extended.

An extension adds its own APIs (`apis`), serves the partitions of its topics (`partition_hooks`), declares
configurations, and works in the background (`run`). The broker knows nothing else about it. Everything here runs on the
broker's event loop. Work of more than about a millisecond belongs in `BrokerContext.executor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from headrace.broker.replication.topic_policy import TopicPolicy

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.broker.configs.config_key import ConfigKey
    from headrace.broker.context import BrokerContext
    from headrace.broker.requests.declaration import ApiDeclaration


class Extension(TopicPolicy, Protocol):
    @property
    def name(self) -> str:
        """Also the name of its folder under DATA/extensions/."""

    def apis(self) -> Sequence[ApiDeclaration]: ...

    def broker_configs(self) -> Sequence[ConfigKey]: ...

    def topic_configs(self) -> Sequence[ConfigKey]: ...

    def judged_as(self, topic: str) -> str:
        """Return the name of the topic whose ACLs apply to this one: its own, unless it is a part of another one."""

    async def start(self, context: BrokerContext) -> None:
        """Called once, before everything else that needs the context. The store is open, but no partition is."""

    async def checkpoint(self, folder: Path) -> None:
        """Copy state for a backup into a folder, which need not exist: files in the extension's own folder that are
        neither in logs nor in the store. The copy is as of one offset of each log, or earlier.
        """

    def early_nodes(self) -> Sequence[str]:
        """Return the roots of nodes that must not be ahead of the logs: the backup of a cluster contains them as they
        were before its cut.
        """
        return ()

    def still_nodes(self) -> Sequence[str]:
        """Return the roots of nodes that must not change during the cut of a cluster."""
        return ()

    async def run(self, context: BrokerContext) -> None:
        """Do background work, from before partitions are served until cancelled.

        After an exception, which is logged, it is called again (`broker.runtime.background`). A broker that stops
        cancels it before the hooks are closed.
        """
