"""The one door through which something is added to the broker.

An extension brings its own APIs (`apis`), takes over the partitions of the topics it recognises (`partition_hooks`),
declares configurations, and works in the background (`run`). The broker knows nothing else about it. Everything here
runs on the broker's event loop. Work over about a millisecond belongs into `BrokerContext.executor`.
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
        """Name of the topic whose ACLs are about this one: its own, unless it is a part of another one."""

    async def start(self, context: BrokerContext) -> None:
        """Called once, before everything else that needs the context; the store is open, no partition is."""

    async def checkpoint(self, folder: Path) -> None:
        """For a backup: copy into a folder, which need not be there, what is kept under the extension's own and is
        neither in logs nor in the store, as it is at one offset of each log or before.
        """

    async def run(self, context: BrokerContext) -> None:
        """Background work, from before partitions are served until cancelled.

        After an exception, which is logged, it is called again (`broker.runtime.background`). A broker that stops
        cancels it before the hooks are closed.
        """
