"""The brokers of a backup: one that is independent, or all live ones of a cluster.

Each broker gives its part: its files below a cut (`headrace.broker.backup`). If its data directory can be read on this
machine, the command reads the files itself, so that the broker is not disturbed. Otherwise it asks the broker for them.

The parts of a cluster make the data directory of a single broker that has all partitions.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from headrace.broker.backup.archive import LocalReader, Manifest, Part, Reader, ReadFile, StoredFile, gone
from headrace.broker.backup.cut import CUT_NAME, PROPERTIES, READ_BYTES_MAX, STORE_NAME, BesideFile, Cut
from headrace.broker.backup.member import Step
from headrace.broker.partitions.data_dir import LAYOUT_VERSION, Properties
from headrace.broker.remote.backup_nodes import IMAGE_NAME, LEADERS_NAME, check_parts, decode_leaders
from headrace.broker.remote.bootstrap import ALONE
from headrace.broker.remote.cluster_copy import ClusterImage
from headrace.broker.remote.shared_copy import made_single
from headrace.broker.runtime.ports import Disk, SystemThreads
from headrace.broker.stores.embedded import write_store
from headrace.protocol.errors import ErrorCode
from headrace.protocol.schema import ApiMessage
from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.client import ClientError, Connection, KafkaError, TableError
from headrace.tablelayer.model.messages.process import (
    BeginBackupRequest,
    BeginBackupResponse,
    CutBackupRequest,
    CutBackupResponse,
    HoldBackupRequest,
    HoldBackupResponse,
    ReadBackupRequest,
    ReadBackupResponse,
)

HOLD_SECONDS: Final = 10.0
_TOGETHER: Final = 16
"""Number of brokers that are asked at the same time."""

ResponseT = TypeVar("ResponseT", bound=ApiMessage)


class CutAgainError(CommandError):
    """The brokers changed while the cut was made; another attempt may succeed."""


class BegunBackup:
    """A backup in progress at each of its brokers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pool = SystemThreads().pool(_TOGETHER, "brokers of the backup")
        self._begun: dict[int, BeginBackupResponse] = {}
        self._addresses: dict[int, str] = {}
        self._ended = threading.Event()
        self._lost: Exception | None = None
        self._holder = threading.Thread(target=self._hold, name="hold the backup", daemon=True)

    # -- life ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the cut. Raises CutAgainError, CommandError, KafkaError."""
        brokers = self._connection.kafka.describe_cluster().brokers
        self._addresses = {each.broker_id: f"{each.host}:{each.port}" for each in brokers}
        first, *others = sorted(self._addresses)
        self._begin_at(first)  # alone at first, so that only one of two backups goes on
        self._each(self._begin_at, others)
        self._holder.start()
        if self._begun[first].is_member:
            self._step(Step.NODES, [first])
            for step in (Step.HOLD, Step.OFFSETS, Step.PARTITIONS, Step.RELEASE):
                self._step(step, list(self._begun))
            self._step(Step.IMAGE, [first])

    def _begin_at(self, node: int) -> None:
        self._begun[node] = self._ask(
            node, BeginBackupRequest(in_steps=True), BeginBackupResponse, doing="begin a backup"
        )

    def _step(self, step: Step, nodes: Sequence[int]) -> None:
        def ask(node: int) -> None:
            request = CutBackupRequest(backup_id=self._begun[node].backup_id, step=step)
            self._ask(node, request, CutBackupResponse, doing=f"cut the backup ({step.name.lower()})")

        self._each(ask, nodes)

    def _each(self, work: Callable[[int], None], nodes: Sequence[int]) -> None:
        """Do it for all brokers at the same time; raise the first error when all are done."""
        failures = []
        for future in [self._pool.submit(work, node) for node in nodes]:
            try:
                future.result()
            except Exception as error:  # noqa: BLE001 - raised below
                failures.append(error)
        if failures:
            final = [each for each in failures if not isinstance(each, CutAgainError)]
            raise (final or failures)[0]

    def _ask(
        self,
        node: int,
        request: ApiMessage,
        response: type[ResponseT],
        *,
        doing: str,
        repeatable: bool = False,
    ) -> ResponseT:
        several = len(self._addresses) > 1
        try:
            return self._connection.call(
                request, response, doing=doing, repeatable=repeatable, node_id=node if several else None
            )
        except KafkaError as error:
            if error.code == ErrorCode.OPERATION_NOT_ATTEMPTED:
                raise CutAgainError(error.message) from error
            if not several or error.code == ErrorCode.RESOURCE_NOT_FOUND:
                raise
            raise CommandError(f"broker {node} at {self._addresses[node]}: {error}") from error
        except ClientError as error:
            if not several:
                raise
            raise CommandError(
                f"broker {node} at {self._addresses[node]} does not answer: {error}"
            ) from error

    def _hold(self) -> None:
        """Tell the brokers periodically that their files are still needed."""
        while not self._ended.wait(HOLD_SECONDS):
            try:
                self._each(lambda node: self._hold_at(node, is_over=False), list(self._begun))
            except (KafkaError, ClientError, TableError, CommandError) as error:
                self._lost = error
                return

    def _hold_at(self, node: int, *, is_over: bool) -> None:
        request = HoldBackupRequest(backup_id=self._begun[node].backup_id, is_over=is_over)
        self._ask(node, request, HoldBackupResponse, doing="hold the backup", repeatable=True)

    def check(self) -> None:
        """Raise the error of a broker that no longer holds the backup."""
        if self._lost is not None:
            raise self._lost

    def end(self, *, is_made: bool) -> None:
        """End it everywhere. If it was made, raises the error of a broker that had ended it before."""
        self._ended.set()
        try:
            if self._holder.ident is not None:
                self._holder.join()
            with suppress(*(() if is_made else (KafkaError, ClientError, TableError, CommandError))):
                self._each(lambda node: self._hold_at(node, is_over=True), list(self._begun))
                self.check()
        finally:
            self._pool.shutdown()

    # -- the parts -------------------------------------------------------------------------------------------

    def parts(self, disk: Disk, folder: Path) -> tuple[list[Part], Manifest]:
        """Return the parts, and the manifest without their files. `folder` is for files that the command makes.

        Raises CutAgainError, CommandError, KafkaError.
        """
        readers = {node: self._reader(disk, node) for node in self._begun}
        cuts = {node: self._cut(reader, node) for node, reader in readers.items()}
        first = min(self._begun)
        if not self._begun[first].is_member:
            reader, cut = readers[first], cuts[first]
            lines = _whole(reader, PROPERTIES).decode().splitlines()
            properties = dict(line.split("=", 1) for line in lines if "=" in line)
            head = Manifest(
                cut.id, cut.made_ms, properties.get("cluster.id", ""), properties.get("node.id", ""), ()
            )
            return [Part(cut, reader)], head
        image_data, leaders_data = (
            _whole(readers[first], self._place(first, name)) for name in (IMAGE_NAME, LEADERS_NAME)
        )
        image = ClusterImage.decode(IMAGE_NAME, image_data)
        try:
            check_parts(image, decode_leaders(leaders_data), cuts)
        except KafkaError as error:
            raise CutAgainError(error.message) from error
        single, lowered = made_single(image, ALONE, lambda *_: -1)
        write_store(folder / STORE_NAME, single.store)
        backup_id, made_ms = uuid.uuid4().hex, min(cut.made_ms for cut in cuts.values())
        store = BesideFile(STORE_NAME, STORE_NAME, disk.size(folder / STORE_NAME) or 0)
        parts = [Part(Cut(backup_id, made_ms, [], [store]), LocalReader(disk, folder))]
        parts += [Part(cut, readers[node], node) for node, cut in _once(cuts).items()]
        properties_text = Properties(LAYOUT_VERSION, image.cluster_id, ALONE, is_member=False).encode()
        head = Manifest(
            backup_id,
            made_ms,
            image.cluster_id,
            str(ALONE),
            (StoredFile(PROPERTIES, text=properties_text.decode()),),
            brokers=tuple(sorted(cuts)),
            lowered=tuple(lowered),
        )
        return parts, head

    def _place(self, node: int, name: str) -> str:
        begun = self._begun[node]
        return (Path(begun.folder) / name).relative_to(begun.data_directory).as_posix()

    def _reader(self, disk: Disk, node: int) -> Reader:
        """Return a reader of the data directory if it is on this machine and readable, or else of the broker."""
        begun = self._begun[node]
        try:
            disk.read(Path(begun.folder) / CUT_NAME)  # the folder's name is unique
        except OSError:
            return _RemoteReader(partial(self._ask, node), begun.backup_id)
        return LocalReader(disk, Path(begun.data_directory))

    def _cut(self, reader: Reader, node: int) -> Cut:
        try:
            return msgspec.json.decode(_whole(reader, self._place(node, CUT_NAME)), type=Cut)
        except msgspec.DecodeError as error:
            raise CommandError(
                f"the server's cut cannot be read: {error}; is the server of another version?"
            ) from error


@contextmanager
def begun_backup(connection: Connection) -> Iterator[BegunBackup]:
    """Begin a backup, hold it, and end it. Raises CutAgainError, CommandError, KafkaError."""
    backup = BegunBackup(connection)
    is_made = False
    try:
        backup.begin()
        yield backup
        is_made = True
    finally:
        backup.end(is_made=is_made)


class _RemoteReader:
    """Asks a broker for the files of its cut. `ask` sends it a request."""

    def __init__(self, ask: Callable[..., ReadBackupResponse], backup_id: str) -> None:
        self._ask = ask
        self._backup_id = backup_id

    def open(self, place: str) -> ReadFile:
        return _RemoteFile(partial(self._range, place))

    def _range(self, place: str, position: int, size: int) -> ReadBackupResponse:
        request = ReadBackupRequest(
            backup_id=self._backup_id, place=place, position=position, size_bytes=size
        )
        try:
            return self._ask(request, ReadBackupResponse, doing=f"read {place}", repeatable=True)
        except KafkaError as error:
            if error.code == ErrorCode.RESOURCE_NOT_FOUND:
                raise gone(place) from error
            raise


class _RemoteFile:
    """A file of a broker's cut. `ask` returns the range at a position."""

    def __init__(self, ask: Callable[[int, int], ReadBackupResponse]) -> None:
        found = ask(0, 0)
        self._ask = ask
        self._size = found.end
        self.written_ms = found.written_ms

    def size(self) -> int:
        return self._size

    def read(self, size: int, position: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self._ask(position + len(data), min(size - len(data), READ_BYTES_MAX)).data
            if not more:
                break
            data += more
        return bytes(data)

    def close(self) -> None:
        """Do nothing: the broker keeps no file open."""


def _whole(reader: Reader, place: str) -> bytes:
    file = reader.open(place)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def _once(cuts: Mapping[int, Cut]) -> dict[int, Cut]:
    """Return the cuts with each path beside the logs once: several brokers may keep the same staged rows."""
    largest: dict[str, tuple[int, int]] = {}
    for node, cut in cuts.items():
        for each in cut.beside:
            largest[each.path] = max(largest.get(each.path, (-1, -1)), (each.size, node))
    return {
        node: replace(cut, beside=[each for each in cut.beside if largest[each.path][1] == node])
        for node, cut in cuts.items()
    }
