"""The objects of one partition's remote part: manifests are created, and objects removed, by one writer at a time.

A manifest is created under the next number: a former leader finds the number taken, or a later one, and stops writing
until it has read the newest manifest. If an answer is lost, the stored manifest shows its writer. A new writer creates
a manifest before it creates or removes its first object (`claim`). An object is removed after the first manifest that
does not name it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.remote.log import RemoteLog
from headrace.broker.remote.manifest import Manifest, RemoteSegment, manifest_number

if TYPE_CHECKING:
    from headrace.broker.log.partition_log import PartitionLog
    from headrace.broker.objects.files import RemoteFiles

Result = TypeVar("Result")


class FencedError(Exception):
    """Another broker writes the manifests of this partition."""


class LogObjects:
    """Writes the manifests of partitions and removes their objects; see the module.

    `writer` names this broker's run in manifests, and `executor` has the thread that waits for `files`.
    """

    def __init__(self, files: RemoteFiles, writer: str, executor: Executor) -> None:
        self._files = files
        self._writer = writer
        self._executor = executor

    async def commit(self, log: PartitionLog, remote: RemoteLog, segments: Sequence[RemoteSegment]) -> None:
        """Commit these segments as the partition's. Raises FencedError, OSError."""
        manifest = remote.manifest.with_segments(segments, self._writer, log.log_start_offset)
        try:
            await self._run(self._create, remote, manifest)
        except BaseException:
            remote.reload()  # the manifest may have been written
            raise
        remote.install(manifest)
        remote.is_cut = False

    def _create(self, remote: RemoteLog, manifest: Manifest) -> None:
        name = f"{remote.folder}/{manifest.name}"
        data = manifest.encode()
        try:
            self._files.put(name, data, create=True)
        except FileExistsError:
            if self._files.read(name) != data:
                raise FencedError(
                    f"{remote.name}: another broker writes to its remote storage; nothing is copied before its "
                    "manifest is read again"
                ) from None
        self._check_newest(remote, manifest)
        if manifest.number > 1:
            with contextlib.suppress(OSError):  # a leftover
                self._files.remove(f"{remote.folder}/{Manifest(manifest.number - 1).name}")

    def _check_newest(self, remote: RemoteLog, manifest: Manifest) -> None:
        """Check, in a thread, that there is no later manifest: a number that was free may have been used and removed by
        another broker. Raises FencedError, OSError.
        """
        name = f"{remote.folder}/{manifest.name}"
        if any(map(manifest_number, self._files.names(remote.folder, after=name))):
            raise FencedError(
                f"{remote.name}: another broker has written to its remote storage since manifest {manifest.number}; "
                "nothing is copied or removed before its manifest is read again"
            )

    async def claim(self, log: PartitionLog, remote: RemoteLog) -> None:
        """Commit a manifest before an object is created or removed. An earlier leader may be about to name an object,
        or to remove it as a leftover, and then finds its next number taken. Raises FencedError, OSError.
        """
        if remote.manifest.writer != self._writer:
            await self.commit(log, remote, remote.manifest.segments)

    async def drop(
        self,
        log: PartitionLog,
        remote: RemoteLog,
        gone: Sequence[RemoteSegment],
        kept: Sequence[RemoteSegment],
    ) -> None:
        """Commit a manifest of the `kept` segments, then remove the others' objects. Raises FencedError, OSError."""
        remote.has_leftovers = True
        await self.commit(log, remote, kept)
        for segment in gone:
            remote.counts.deletions += 1
            try:
                await self._run(self._files.remove, f"{remote.folder}/{segment.name}")
            except OSError:
                remote.counts.delete_errors += 1
                raise
        remote.has_leftovers = False

    async def remove_leftovers(self, log: PartitionLog, remote: RemoteLog) -> None:
        """Remove objects that no manifest names. Raises FencedError, OSError."""
        names = await self._run(self._leftovers, remote)
        if names:
            await self.claim(log, remote)
            await self._run(self._remove, names)

    def _leftovers(self, remote: RemoteLog) -> list[str]:
        """Return, in a thread, objects that the manifest does not name and that cannot have been created since it was.
        Raises FencedError, OSError.
        """
        needed = {segment.name for segment in remote.manifest.segments}
        found = []
        for name in self._files.names(remote.folder):
            number = manifest_number(name)
            if number > remote.manifest.number:
                remote.reload()
                raise FencedError(f"{remote.name}: another broker has written to its remote storage")
            if number < remote.manifest.number if number else name.rpartition("/")[2] not in needed:
                found.append(name)
        return found

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._files.remove(name)

    async def _run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)
