"""Handlers of requests for copies of a bucket's store, which other replicas make."""

from __future__ import annotations

from headrace.broker.requests.declaration import RequestContext
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.messages import between as m
from headrace.tablelayer.server.bucket.key_bucket import KeyBucket
from headrace.tablelayer.server.services import KeptStore, Services
from headrace.tablelayer.server.store.copies import StoreCopies


class CopyHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._copies = StoreCopies(services)

    async def copy(self, context: RequestContext, request: m.CopyStoreRequest) -> m.CopyStoreResponse:
        if request.done:
            await self._copies.done(request.copy_id)
            return m.CopyStoreResponse()
        if request.copy_id.int:
            data = await self._copies.read(request.copy_id, request.file, request.position)
            return m.CopyStoreResponse(copy_id=request.copy_id, data=data)
        partition = self._services.context.replicas.partition(request.topic, request.bucket)
        hooks: object = partition.hooks
        bucket: KeyBucket | KeptStore | None = hooks if isinstance(hooks, KeyBucket) else None
        if bucket is None:
            bucket = self._services.standbys.get((partition.topic.topic_id, partition.index))
        if bucket is None:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"there is no store of bucket {request.bucket} of {request.topic} here",
            )
        copy_id, files = await self._copies.make(bucket.directory, bucket.checkpoint)
        return m.CopyStoreResponse(copy_id=copy_id, files=files)
