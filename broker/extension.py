"""The one door through which something is added to the broker.

An extension brings its own APIs (`apis`), takes over the partitions of the topics it recognises
(`partition_hooks`), declares configurations, and works in the background (`run`). The broker knows nothing
else about it.

Invariants
- Everything here runs on the broker's event loop. Work over about a millisecond belongs into
  `BrokerContext.executor`.
- A partition with hooks publishes its high watermark only through `Partition.publish_high_watermark`, called
  by the hooks; what lies at or above it is never shown to anyone. A hook that has heard
  `high_watermark_candidate(n)` must in the end publish n, or fail the partition.
- Life of the hooks of a partition: `start` -> (`produce` | `fetch` | `high_watermark_candidate` |
  `truncated`)* -> `close` or `delete`. Nothing is called after `close` or `delete`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from broker.background import BackgroundTasks
from broker.config_key import ConfigError, ConfigKey, ConfigType
from broker.log.errors import RecordErrors
from broker.metrics.model import Metrics
from broker.slices import Slices, Work

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor
    from pathlib import Path

    from broker.cluster.metadata import TopicManager
    from broker.cluster.partition import Partition, TopicImage
    from broker.config import BrokerConfig
    from broker.log.partition_log import AppendInfo
    from broker.log.region import FileRegion
    from broker.ports import AgeClock, Clock, CoordinationStore, Entropy
    from protocol.errors import KafkaError
    from protocol.schema import ApiMessage

__all__ = [
    "ApiDeclaration",
    "BrokerContext",
    "ConfigError",
    "ConfigKey",
    "ConfigType",
    "Encodable",
    "Extension",
    "FetchedRecords",
    "PartitionHooks",
    "RecordErrors",
    "Repeat",
    "RequestContext",
]


class RequestContext(msgspec.Struct):
    """What a handler may know about the request besides its body."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    connection_id: int
    listener: str


class Encodable(Protocol):
    """An ApiMessage, or what was made of one beforehand."""

    def encode_parts(self, version: int) -> list[Any]: ...


Handler = Callable[
    [RequestContext, Any],
    "Encodable | Awaitable[Encodable | Work[Encodable] | None] | Work[Encodable | Awaitable[Any] | None] | None",
]
"""Gives the response (None: there is none), or an awaitable of it, or work in slices whose result that is
(`broker.slices`): whatever loops over what a client has named has to be that.
"""


class Repeat(msgspec.Struct):
    """How to answer requests that are one already answered, with other records.

    `handle` gets the records, does all that the handler would, and gives the numbers that stand in `response`
    where the `placeholders` are. It gives None, or raises KafkaError having changed nothing, for whatever is to be
    left to the handler: also when something else has changed that the first answer depended on.
    """

    handle: Callable[[memoryview], tuple[int, ...] | None]
    response: ApiMessage
    placeholders: tuple[int, ...]


class ApiDeclaration(msgspec.Struct, frozen=True):
    """One API: its messages, its versions and who answers it. ApiVersions is computed from these.

    `handler` returns the response, None for "no answer" (acks=0 only), or an awaitable of either. What it may
    raise: KafkaError (becomes the error code of the response), DecodeError (closes the connection), anything
    else (becomes UNKNOWN_SERVER_ERROR, with a traceback in the log).

    `min_version` and `max_version` default to the request's own. `advertised_min_version` is for the one API
    whose clients want to see a version that nobody sends (Produce 0, KAFKA-18659).

    A handler runs to its end although its client has gone, since what it does must not stop half-way. With
    `cancel_on_disconnect` it is cancelled: for handlers that only wait and change nothing.

    `on_error` builds the response that carries an error; without it the error goes to the fields `error_code`
    and `error_message` of the response, which must then have the former.

    One that is not `advertised` is for clients that send it all the same: it has only a reason to give.

    `repeat` is asked after a request was answered at once: how to answer others like it (None: not at all).
    """

    request: type[ApiMessage]
    response: type[ApiMessage]
    handler: Handler
    min_version: int = -1
    max_version: int = -1
    advertised_min_version: int = -1
    cancel_on_disconnect: bool = False
    on_error: Callable[[Any, int, KafkaError], ApiMessage | Work[ApiMessage]] | None = None
    repeat: Callable[[RequestContext, Any], Repeat | None] | None = None
    advertised: bool = True

    def __post_init__(self) -> None:
        if self.min_version < 0:
            msgspec.structs.force_setattr(self, "min_version", self.request.MIN_VERSION)
        if self.max_version < 0:
            msgspec.structs.force_setattr(self, "max_version", self.request.MAX_VERSION)
        if self.advertised_min_version < 0:
            msgspec.structs.force_setattr(self, "advertised_min_version", self.min_version)

    @property
    def key(self) -> int:
        return self.request.API_KEY


class FetchedRecords(msgspec.Struct, frozen=True):
    """What a hook gives to a Kafka consumer: whole record batches v2 with the log's own offsets, or nothing.

    `parts` are sent one after the other; `size` is their length in bytes. `record_count` is for the statistics.
    """

    parts: tuple[bytes | bytearray | memoryview | FileRegion, ...] = ()
    size: int = 0
    record_count: int = 0


class PartitionHooks(Protocol):
    """How an extension serves one partition. One object per partition; called on the event loop only."""

    async def start(self) -> None:
        """The log is open; nothing is served yet. Replay here, and publish the high watermark that results.

        An exception fails the partition, not the broker.
        """

    async def produce(self, batch: memoryview, acks: int, timeout_ms: int) -> AppendInfo:
        """Take a Kafka client's batch and wait for what `acks` (0, 1, -1) demands.

        The batch has been checked to be exactly one batch with magic 2. Raises KafkaError or RecordErrors.
        """

    async def fetch(self, offset: int, max_bytes: int, min_one: bool) -> FetchedRecords:
        """Records for a Kafka consumer, from `offset` on, below the published high watermark.

        Must get past offsets at which there is nothing to show (an empty batch that covers them), so that a
        consumer advances. With `min_one` at least one whole batch, however large.
        """

    def high_watermark_candidate(self, offset: int) -> None:
        """The log is replicated up to `offset`. Publish it with `Partition.publish_high_watermark` when
        ready.
        """

    def retention_floor(self) -> int | None:
        """Retention never deletes at or above this offset; None if it may delete anything."""

    async def truncated(self, end_offset: int) -> None:
        """Records at and above `end_offset` are gone from the log."""

    async def close(self) -> None: ...

    async def delete(self) -> None:
        """The topic was deleted: release and remove everything that belongs to the partition."""


class Extension(Protocol):
    @property
    def name(self) -> str:
        """Also the name of its folder under DATA/extensions/."""

    def apis(self) -> Sequence[ApiDeclaration]: ...

    def broker_configs(self) -> Sequence[ConfigKey]: ...

    def topic_configs(self) -> Sequence[ConfigKey]: ...

    async def validate_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> dict[str, str]:
        """At creation: the configuration in its normal form, or KafkaError. Others' names are passed through.

        Runs before anything is written, while no topic can change; nothing may depend on its having been called.
        """

    async def validate_change(
        self, topic: TopicImage, partitions: int, config: Mapping[str, str]
    ) -> dict[str, str]:
        """Like `validate_topic` for a topic that exists and is to get this configuration or partition count."""

    def partition_hooks(self, partition: Partition, topic: TopicImage) -> PartitionHooks | None:
        """Hooks if the topic is the extension's; None leaves it a plain Kafka topic."""

    def retention_floor(self, partition: Partition) -> int | None:
        """The same as `PartitionHooks.retention_floor`, for partitions that have no hooks."""

    async def start(self, context: BrokerContext) -> None:
        """Called once, before everything else that needs the context; the store is open, no partition is."""

    async def run(self, context: BrokerContext) -> None:
        """Background work, from before partitions are served until cancelled.

        After an exception, which is logged, it is called again (`broker.background`). When the broker stops, this is
        cancelled before the hooks are closed.
        """


class BrokerContext(msgspec.Struct):
    """What the broker offers to extensions and to the group coordinator."""

    config: BrokerConfig
    clock: Clock
    entropy: Entropy
    store: CoordinationStore
    data_dir: Path
    executor: Executor
    metadata: TopicManager
    broker_id: int
    cluster_id: str
    start_task: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
    allocate_producer_id: Callable[[], Awaitable[int]]
    advertised: Callable[[], tuple[str, int]]
    """Host and port that clients are told; known once the broker listens."""
    ages: AgeClock
    """What retention and expiry go by."""
    background: BackgroundTasks
    """Work beside the requests, whose failure stops nothing."""
    metrics: Metrics = msgspec.field(default_factory=Metrics)
    """Where a part says what can be measured of it."""
    slices: Slices = msgspec.field(default_factory=Slices)
    """Where work that is long for the event loop is done."""

    @property
    def rack(self) -> str | None:
        rack: str | None = self.config["broker.rack"]
        return rack

    def partition(self, topic: str, index: int) -> Partition:
        """The partition, or KafkaError(UNKNOWN_TOPIC_OR_PARTITION); KAFKA_STORAGE_ERROR shows on its use."""
        return self.metadata.partition(topic, index)

    def extension_dir(self, name: str) -> Path:
        """The extension's own folder under the data directory, created if missing."""
        path = self.data_dir / "extensions" / name
        path.mkdir(parents=True, exist_ok=True)
        return path
