"""A broker to talk to without sockets: frames go straight into its dispatcher, answers come straight out.

    async with direct_broker(tmp_path) as broker:
        response = await broker.send(MetadataRequest(topics=None), version=12)

Everything else is real: encoding, versions, handlers, logs on disk, restarts. For tests of what APIs promise;
those of sockets are in `broker.net`'s own.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.extension import Extension
from headrace.broker.net.reply import Peer, Pending
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.runtime.ports import Clock, CoordinationStore
from headrace.broker.security.principal import ANONYMOUS, Session
from headrace.broker.server import Broker
from headrace.protocol.headers import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
)
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from headrace.protocol.records.decode import decode_records
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import iter_headers
from headrace.protocol.schema import ApiMessage

QUICK = {"group.initial.rebalance.delay.ms": "0"}


class DirectBroker:
    """A started broker and its dispatcher."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.context = broker.context
        self.peer = Peer(1, "127.0.0.1", 1, "PLAINTEXT", Session(ANONYMOUS, "PLAINTEXT"))
        """The connection of all requests; a new object is a new connection."""
        self._correlation_id = 0

    async def send(self, request: ApiMessage, version: int | None = None, client_id: str = "test") -> Any:
        """Return the decoded response, or None if there is none. Raise CloseConnection as the dispatcher does."""
        api_version = type(request).MAX_VERSION if version is None else version
        self._correlation_id = sent = self._correlation_id + 1
        answer = await self.send_frame(encode_request(request, api_version, sent, client_id))
        return None if answer is None else decode_answer(answer, request, api_version, sent)

    async def create_topic(self, name: str, partitions: int = 1, **config: str) -> TopicImage:
        """Create a topic; `_` in the names of configurations stands for `.`."""
        named = {key.replace("_", "."): value for key, value in config.items()}
        return await self.context.topics.create_topic(name, partitions, named)

    async def produce(
        self,
        topic: str,
        values: Sequence[bytes] | bytes,
        *,
        partition: int = 0,
        acks: int = -1,
        version: int = 12,
        **batch_options: Any,
    ) -> PartitionProduceResponse:
        """Produce one batch of `values`, or the given bytes. Return the partition's part of the answer."""
        if isinstance(values, bytes):
            batch = values
        else:
            now_ms = self.context.clock.time_ms()
            batch = build_batch([Record(None, value, (), now_ms) for value in values], **batch_options)
        image = self.context.metadata.topic(topic)
        data = TopicProduceData(
            name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)]
        )
        if image is not None:
            data.topic_id = image.topic_id
        request = ProduceRequest(acks=acks, timeout_ms=60_000, topic_data=[data])
        response = await self.send(request, version)
        answer: PartitionProduceResponse = response.responses[0].partition_responses[0]
        return answer

    async def fetch(
        self,
        topic: str,
        offset: int = 0,
        *,
        partition: int = 0,
        version: int = 12,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 26,
        partition_max_bytes: int = 1 << 20,
        **options: Any,
    ) -> PartitionData:
        """Fetch one partition by name. Return the partition's part of the answer."""
        wanted = FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes
        )
        for name in ("current_leader_epoch", "last_fetched_epoch"):
            if name in options:
                setattr(wanted, name, options.pop(name))
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            topics=[FetchTopic(topic=topic, partitions=[wanted])],
            **options,
        )
        response = await self.send(request, version)
        answer: PartitionData = response.responses[0].partitions[0]
        return answer

    async def send_frame(self, frame: bytes) -> bytes | None:
        """Return the bytes of the answer to a frame without its length."""
        answer = self.broker.dispatcher(self.peer, frame)
        if isinstance(answer, Pending):
            outcome = asyncio.ensure_future(answer.outcome)
            try:
                await asyncio.wait([outcome])
            except asyncio.CancelledError:
                outcome.cancel()
                raise
            answer = answer.finish(outcome)
        if answer is None:
            return None
        return b"".join(
            bytes(part) if isinstance(part, (bytes, bytearray, memoryview)) else part.read()  # type: ignore[attr-defined]
            for part in answer
        )


def encode_request(
    request: ApiMessage, api_version: int, correlation_id: int, client_id: str = "test"
) -> bytes:
    """Encode a frame without its length."""
    header = RequestHeader(request.API_KEY, api_version, correlation_id, client_id)
    return encode_request_header(header, request.header_version(api_version)) + request.encode(api_version)


def decode_answer(answer: bytes, request: ApiMessage, api_version: int, correlation_id: int) -> Any:
    """Decode the answer to a request. Raise RuntimeError if it answers another one."""
    response = response_type(type(request))
    answered, position = decode_response_header(answer, response.header_version(api_version))
    if answered != correlation_id:
        raise RuntimeError(f"the answer is to request {answered}, not {correlation_id}")
    return response.decode(answer, api_version, None, position)


def values_of(records: bytes | memoryview) -> list[tuple[int, bytes | None]]:
    """Return offset and value of every record in some batches."""
    found: list[tuple[int, bytes | None]] = []
    view = memoryview(records)
    for position, header in iter_headers(view):
        columns = decode_records(view[position : position + header.size])
        found.extend(zip(columns.offsets.tolist(), columns.values(), strict=True))
    return found


def response_type(request: type[ApiMessage]) -> type[ApiMessage]:
    """Return the response type of a request; both are in one module."""
    module = importlib.import_module(request.__module__)
    response: type[ApiMessage] = getattr(module, request.__name__.removesuffix("Request") + "Response")
    return response


@asynccontextmanager
async def direct_broker(
    data_dir: Path,
    config: Mapping[str, str] | None = None,
    *,
    extensions: Sequence[Extension] = (),
    clock: Clock | None = None,
    store: CoordinationStore | None = None,
) -> AsyncIterator[DirectBroker]:
    """Run a broker on `data_dir` and stop it cleanly at the end. `store` replaces its own store, and is closed by
    the broker.
    """
    keys = [key for extension in extensions for key in extension.broker_configs()]
    broker = Broker(
        BrokerConfig({**QUICK, **(config or {})}, keys),
        data_dir=data_dir,
        port=0,
        extensions=extensions,
        clock=clock,
        store=store,
    )
    await broker.start()
    try:
        yield DirectBroker(broker)
    finally:
        await broker.stop()
