"""The log cleaner: compacts partitions of topics with `cleanup.policy=compact`, the dirtiest first, one at a time.

The event loop decides which partition is cleaned and how far. Reading and writing run in a thread, in slices of a few
milliseconds. Between slices the rate is limited (`log.cleaner.io.max.bytes.per.second`), and the cleaning of a closed
partition stops. Segments are exchanged by a few renames on the event loop, which owns the logs.

`cleaner-offset-checkpoint` in the data directory has the offset up to which each partition was cleaned, in Kafka's
format: version, number of lines, then a line `topic partition offset` for each. It is replaced after each cleaning.
Without it all partitions are checked again, which only costs time. A partition that cannot be cleaned is reported once
and skipped until the next start.

Source: Kafka's LogCleaner and LogCleanerManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Final

from headrace.broker.log.compaction_plan import Cleanable, Step, cleanable
from headrace.broker.log.errors import CleaningAbandoned, CleaningError, CorruptLogError
from headrace.broker.runtime import disk_errors
from headrace.broker.runtime.disk_errors import is_passing
from headrace.protocol.errors import DecodeError, KafkaError

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from pathlib import Path

    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.log.compaction_run import Cleaning
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.partitions.topic import TopicImage
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.runtime.background import BackgroundTasks
    from headrace.broker.runtime.ports import AgeClock, Disk, Entropy

logger = logging.getLogger("headrace.cleaner")

CHECKPOINT_NAME: Final = "cleaner-offset-checkpoint"
_VERSION: Final = "0"
_SLICE_SECONDS: Final = 0.01
_SHARE: Final = 0.5
"""Maximum share of the time of one core that the cleaner uses while it has work."""

_SECRET_BYTES: Final = 16
_POLICY: Final = "cleanup.policy"


class LogCleaner:
    def __init__(
        self,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        replicas: LocalReplicas,
        data_dir: Path,
        executor: Executor,
        ages: AgeClock,
        background: BackgroundTasks,
        disk: Disk,
        entropy: Entropy,
        removals: asyncio.Lock | None = None,
    ) -> None:
        """`removals`: the lock of tasks that need the files of all segments to stay."""
        self._removals = removals or asyncio.Lock()
        self._config = config
        self._metadata = metadata
        self._replicas = replicas
        self._executor = executor
        self._ages = ages
        self._background = background
        self._disk = disk
        self._entropy = entropy
        self._path = data_dir / CHECKPOINT_NAME
        self._done = self._read_checkpoint()
        self._given_up: set[tuple[str, int]] = set()

    async def run(self) -> None:
        """Clean until cancelled."""
        config = self._config
        await asyncio.sleep(config["log.initial.task.delay.ms"] / 1000)
        while True:
            if not config["log.cleaner.enable"] or not await self.clean_one():
                await asyncio.sleep(config["log.cleaner.backoff.ms"] / 1000)

    async def clean_one(self) -> bool:
        """Clean the dirtiest partition that is dirty enough. False if there is none, or it cannot be cleaned."""
        async with self._removals:
            return await self._clean_one()

    async def _clean_one(self) -> bool:
        best = await self._dirtiest()
        if best is None:
            return False
        partition, part = best
        try:
            await self._clean(partition, part)
        except (CleaningError, CleaningAbandoned, CorruptLogError, KafkaError, OSError) as error:
            if is_passing(error):  # there may be room later
                disk_errors.tell(logger, "{}-{} cannot be compacted".format(*_name(partition)), error)
            elif partition.closed or isinstance(error, CleaningAbandoned):
                logger.info("the cleaning of %s-%d was stopped: %s", *_name(partition), error)
            else:
                self._give_up(partition, error)
            return False
        except Exception as error:  # noqa: BLE001 - of one partition: told
            self._background.failed(f"the cleaning of {partition!r}", error)
            self._give_up(partition, error)
            return False
        return True

    def forget_topic(self, topic: str) -> None:
        """Forget a deleted topic: another one may get its name."""
        for name in [name for name in self._done if name[0] == topic]:
            del self._done[name]
        self._given_up = {name for name in self._given_up if name[0] != topic}

    def _give_up(self, partition: Partition, error: Exception) -> None:
        logger.error("%s-%d is not compacted until the next start: %s", *_name(partition), error)
        self._given_up.add(_name(partition))

    async def _dirtiest(self) -> tuple[Partition, Cleanable] | None:
        """Return the partition to clean: overdue ones first, then the one with the largest dirty part."""
        best: tuple[Partition, Cleanable] | None = None
        async for partition in self._wanted():
            try:
                log = partition.log
                bound = partition.last_stable_offset
                done = self._done.get(_name(partition), 0)
                part = cleanable(log, done, bound, self._ages.time_ms())
            except (KafkaError, OSError, CorruptLogError, DecodeError) as error:
                self._give_up(partition, error)
                continue
            except Exception as error:  # noqa: BLE001 - of one partition: told
                self._background.failed(f"measuring the dirty part of {partition!r}", error)
                self._give_up(partition, error)
                continue
            is_dirty = part.dirty_ratio > log.config.min_cleanable_dirty_ratio
            if part.dirty_bytes and (part.is_due or is_dirty):
                rank = (part.is_due, part.dirty_ratio)
                if best is None or rank > (best[1].is_due, best[1].dirty_ratio):
                    best = partition, part
        return best

    async def _wanted(self) -> AsyncIterator[Partition]:
        """Yield the partitions that are led or followed here, because each replica is compacted by its own broker. The
        event loop runs other work between two of them.
        """
        replicas, configs = self._replicas, self._metadata.topic_configs
        for image in self._compactable():
            await asyncio.sleep(0)
            if image.internal or not configs.log_config(image).is_compacted:
                continue  # an internal topic is rewritten by its coordinator
            for partition in list(replicas.partitions(image.name)):
                await asyncio.sleep(0)
                readable = self._readable(partition)
                if readable is not None and _name(partition) not in self._given_up:
                    yield readable

    def _compactable(self) -> list[TopicImage]:
        """Return the topics that may be compacted: without such a default, those that set their policy."""
        metadata = self._metadata
        if "compact" in metadata.topic_configs.broker_defaults.get(_POLICY, ""):
            return metadata.topics()
        return metadata.topics_that_set(_POLICY)

    def _readable(self, partition: Partition) -> Partition | None:
        """Return this broker's replica of a partition, whose log it may compact; None if it has none."""
        if not partition.closed:
            return partition if partition.failure is None and partition.hooks is None else None
        follower = self._replicas.follower(*_name(partition))
        if (
            follower is None
            or not follower.is_open
            or follower.failure is not None
            or follower.hooks is not None
            or self._metadata.topic_configs.is_extended(partition.topic)
        ):
            return None
        return follower.readable

    async def _clean(self, partition: Partition, part: Cleanable) -> None:
        loop = asyncio.get_running_loop()
        cleaning_class = await loop.run_in_executor(self._executor, _load_cleaning)
        cleaning: Cleaning = cleaning_class(
            partition.log,
            part,
            now_ms=self._ages.time_ms(),
            memory_bytes=self._config["log.cleaner.dedupe.buffer.size"],
            secret=self._entropy.bytes(_SECRET_BYTES),
        )
        started = loop.time()
        steps = cleaning.steps()
        try:
            await self._carry_out(partition, cleaning, steps)
        finally:
            await asyncio.shield(loop.run_in_executor(self._executor, steps.close))
        self._done[_name(partition)] = cleaning.end_offset
        await loop.run_in_executor(self._executor, self._write_checkpoint)
        counts = cleaning.counts
        logger.info(
            "compacted %s-%d up to offset %d in %.1f s: kept %d of %d records and %d of %d bytes",
            *_name(partition),
            cleaning.end_offset,
            loop.time() - started,
            counts.records_kept,
            counts.records_read,
            counts.bytes_kept,
            counts.bytes_read,
        )

    async def _carry_out(self, partition: Partition, cleaning: Cleaning, steps: Iterator[Step]) -> None:
        config, loop = self._config, asyncio.get_running_loop()
        step: Step | None = Step.ANY_THREAD
        bytes_done = 0
        while step is not None:
            if partition.closed:
                raise CleaningAbandoned("the partition is closed")
            if step is Step.OWNER:
                step = next(steps, None)
                continue
            began = loop.time()
            slice_ = loop.run_in_executor(self._executor, _advance, steps, loop.time)
            try:
                step = await asyncio.shield(slice_)
            except asyncio.CancelledError:
                await asyncio.wait([slice_])  # the canceller closes what the thread is using
                raise
            pause = (loop.time() - began) * (1 - _SHARE) / _SHARE
            done, bytes_done = cleaning.bytes_done - bytes_done, cleaning.bytes_done
            await asyncio.sleep(max(pause, done / config["log.cleaner.io.max.bytes.per.second"]))

    # -- the checkpoint ------------------------------------------------------------------------------------

    def _read_checkpoint(self) -> dict[tuple[str, int], int]:
        try:
            return decode_checkpoint(self._disk.read(self._path))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            logger.warning("%s is not usable (%s): checking all partitions again", self._path, error)
            return {}

    def _write_checkpoint(self) -> None:
        self._done = {
            name: offset
            for name, offset in self._done.items()
            if self._replicas.find_partition(*name) is not None
        }
        self._disk.replace(self._path, encode_checkpoint(self._done), sync=True)


def encode_checkpoint(offsets: dict[tuple[str, int], int]) -> bytes:
    lines = [f"{topic} {index} {offset}" for (topic, index), offset in sorted(offsets.items())]
    return "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()


def decode_checkpoint(data: bytes) -> dict[tuple[str, int], int]:
    """Return offsets by topic and partition. Raises ValueError for another kind of file. Kafka's own is empty until its
    first cleaning.
    """
    lines = data.decode("ascii").split("\n")
    if lines == [""]:
        return {}
    if lines[0] != _VERSION or len(lines) < 3 or lines[-1] != "" or int(lines[1]) != len(lines) - 3:
        raise ValueError("not an offset checkpoint of version 0")
    offsets = {}
    for line in lines[2:-1]:
        topic, index, offset = line.split(" ")
        offsets[topic, int(index)] = int(offset)
    return offsets


def _load_cleaning() -> type[Cleaning]:
    """Import the cleaning. It loads numba, which takes a while: not on the event loop."""
    from headrace.broker.log.compaction_run import Cleaning

    return Cleaning


def _advance(steps: Iterator[Step], now: Callable[[], float]) -> Step | None:
    """Run steps for a slice of time, in a thread; return what the next step needs, None at the end."""
    end = now() + _SLICE_SECONDS
    while (step := next(steps, None)) is Step.ANY_THREAD and now() < end:
        pass
    return step


def _name(partition: Partition) -> tuple[str, int]:
    return partition.topic.name, partition.index
