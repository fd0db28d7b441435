"""A bucket as it was at an earlier offset.

There are three ways to build it, and the shortest is used (R14):
- from a snapshot and the changelog after it;
- from nothing and the changelog from offset 0;
- from the present state, by undoing later changes with the changelog's old images.

The result is a separate store beside the bucket's. All readers of the same offset share it, and it is removed after
the last one.

`plan` decides, and is pure. Retention may have removed what is needed: an offset that cannot be built is an
OUTSIDE_RETENTION error.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.broker.log.region import RemoteRegion
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.options.table_options import ChangelogImage
from headrace.tablelayer.server.regions import headers_of
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.server.store.tablet import Tablet

if TYPE_CHECKING:
    from headrace.broker.log.region import FileRegion
    from headrace.broker.partitions.partition import Partition
    from headrace.tablelayer.model.rows.versions import SchemaVersions
    from headrace.tablelayer.server.bucket.key_bucket import KeyBucket
    from headrace.tablelayer.server.services import Services
    from headrace.tablelayer.server.store.snapshots import Snapshot

logger = logging.getLogger("headrace.tables")

_numbers = itertools.count(1)


class Base(msgspec.Struct, frozen=True):
    """The start of a past state: `snapshot`, the present state if `is_present`, else nothing; and the number of offsets
    to apply or undo.
    """

    distance: int
    is_present: bool = False
    snapshot: Snapshot | None = None


def plan(
    offset: int, *, log_start: int, present: int, snapshots: Sequence[Snapshot], has_old_images: bool
) -> Base | None:
    """Return the shortest way to the state at `offset`, which is at most `present`; None if there is none."""
    ways = [
        Base(offset - each.offset, snapshot=each)
        for each in snapshots
        if each.offset == offset or log_start <= each.offset < offset
    ]
    if log_start == 0:
        ways.append(Base(offset))
    if offset == present or (has_old_images and offset >= log_start):
        ways.append(Base(present - offset, is_present=True))
    # Prefer the present, which is at hand, then an empty start; a snapshot has to be downloaded.
    return min(
        ways, key=lambda way: (way.distance, not way.is_present, way.snapshot is not None), default=None
    )


class PastState:
    """A store at one offset, for as long as it has readers."""

    def __init__(self, making: asyncio.Task[KeyValueStore]) -> None:
        self.making = making
        self.holders = 0


class PastStates:
    """All open past states of this process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._open: dict[tuple[KeyBucket, int], PastState] = {}

    def is_open(self, bucket: KeyBucket, offset: int) -> bool:
        """Return whether the state is open, so that another reader costs nothing."""
        return (bucket, offset) in self._open

    async def acquire(self, bucket: KeyBucket, offset: int) -> KeyValueStore:
        """Return the bucket's store at `offset`; give it back with `release`.

        Raises TableError OUTSIDE_RETENTION, or BUFFER_EXHAUSTED if too many are open.
        """
        state = self._open.get((bucket, offset))
        if state is None:
            if len(self._open) >= self._services.limits.past_states_max:
                raise TableError(
                    TableErrorCode.BUFFER_EXHAUSTED,
                    f"{len(self._open)} past states of tables are open, which is the maximum; try again later",
                )
            making = asyncio.get_running_loop().create_task(self._make(bucket, offset))
            state = self._open[bucket, offset] = PastState(making)
        state.holders += 1
        try:
            # The shield: a cancelled reader does not stop the work for other readers, or for its own next attempt.
            return await asyncio.shield(state.making)
        except BaseException:
            await self.release(bucket, offset)
            raise

    async def release(self, bucket: KeyBucket, offset: int) -> None:
        state = self._open[bucket, offset]
        state.holders -= 1
        if state.holders:
            return
        del self._open[bucket, offset]
        try:
            store = await state.making
        except (TableError, KafkaError):  # raised for the readers that waited for it
            return
        except Exception:
            logger.exception("the past state of %s at offset %d cannot be made", bucket.name, offset)
            return
        await self._services.run(store.destroy)

    async def _make(self, bucket: KeyBucket, offset: int) -> KeyValueStore:
        services, partition = self._services, bucket.partition
        log, definition = partition.log, bucket.definition
        has_old_images = definition.settings.changelog_image is ChangelogImage.FULL
        directory = bucket.directory.with_name(f"{bucket.directory.name}.as-of-{next(_numbers)}")
        end = partition.high_watermark
        if not 0 <= offset <= end:
            raise TableError(
                TableErrorCode.OUTSIDE_RETENTION,
                f"{bucket.name} has no offset {offset}: its log ends at {end}",
            )
        snapshots = bucket.snapshots
        known = () if snapshots is None else snapshots.known or await bucket.known_snapshots()
        base = plan(
            offset,
            log_start=log.log_start_offset,
            present=end,
            snapshots=known,
            has_old_images=has_old_images,
        )
        if base is None:
            raise outside_retention(bucket, offset, known)
        await services.run(self._check_space, bucket)
        with ExitStack() as leases:
            if base.snapshot is not None:
                assert snapshots is not None
                leases.enter_context(snapshots.lease(base.snapshot))
            # The regions keep their files open: retention cannot remove them.
            if base.is_present:
                await bucket.read(lambda store: store.checkpoint(directory, services.memory))
                store = await services.run(KeyValueStore.open, directory, services.memory)
                regions = await _regions(services, partition, offset, store.applied_offset)
            else:
                first = 0 if base.snapshot is None else base.snapshot.offset
                regions = await _regions(services, partition, first, offset)
                if base.snapshot is not None:
                    assert snapshots is not None
                    await services.run(snapshots.download, base.snapshot, directory)
                store = await services.run(KeyValueStore.open, directory, services.memory)
        try:
            slow = next((each for each in regions if isinstance(each, RemoteRegion)), None)
            move = (_move, store, bucket.versions(), regions, offset, base.is_present)
            await (services.run(*move) if slow is None else services.run_on(slow, partition, *move))
        except BaseException:
            await services.run(store.destroy)
            raise
        logger.info(
            "%s: built the state at offset %d by %s %d offsets",
            bucket.name, offset, "rolling back" if base.is_present else "applying", base.distance,
        )  # fmt: skip
        return store

    def _check_space(self, bucket: KeyBucket) -> None:
        """Raise TableError if the disk lacks space: a past state may take as much as the present one.

        The space of other past states is already in use.
        """
        size = 0 if bucket.store is None else bucket.store.size_bytes()
        disk = self._services.store_disk.usage(self._services.directory)
        least = self._services.limits.disk_kept_free(disk.total_bytes)
        if disk.free_bytes - size < least:
            raise TableError(
                TableErrorCode.BUFFER_EXHAUSTED,
                f"the state of {bucket.name} at an earlier offset may take {size} bytes; the disk has "
                f"{disk.free_bytes}, of which {least} are kept free: read the present state, or try again later",
            )


def outside_retention(bucket: KeyBucket, offset: int, snapshots: Sequence[Snapshot]) -> TableError:
    log = bucket.partition.log
    reachable = sorted(each.offset for each in snapshots)
    return TableError(
        TableErrorCode.OUTSIDE_RETENTION,
        f"{bucket.name} cannot be read at offset {offset}: its log begins at {log.log_start_offset}, and its "
        f"snapshots are at {', '.join(map(str, reachable)) or 'no offset'}"
        + (
            ""
            if bucket.definition.settings.changelog_image is ChangelogImage.FULL
            else "; without old images ('table.changelog.image' = 'WAL') only states after a snapshot can be read"
        ),
    )


async def _regions(services: Services, partition: Partition, start: int, end: int) -> list[FileRegion]:
    """Return whole batches that have [start, end), in order."""
    regions = []
    while start < end:
        region = (await partition.read_anywhere(start, 4 << 20, up_to=end)).region
        if region is None:
            # The batch with `start` ends behind `end`: read it alone.
            region = (await partition.read_anywhere(start, 1, up_to=partition.log.log_end_offset)).region
        if region is None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{partition!r} has nothing at offset {start}, below {end}"
            )
        regions.append(region)
        start = max(start, await services.run_on(region, partition, _end_of, region))
    return regions


def _end_of(region: FileRegion) -> int:
    return max(header.next_offset for _, header in headers_of(region))


def _move(
    store: KeyValueStore, versions: SchemaVersions, regions: list[Any], offset: int, backwards: bool
) -> None:
    tablet = Tablet(store)
    for region in reversed(regions) if backwards else regions:
        if backwards:
            tablet.take_back(versions, region.read(), offset)
        else:
            tablet.replay(versions, region.read(), up_to=offset)
