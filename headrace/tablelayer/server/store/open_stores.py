"""Key-value stores that are open at a time: a budget of files, which closes the least recently used stores first.

An open store takes seven files and a quarter of a megabyte, however few rows it has. So stores beyond the budget, and
stores that were not used for some minutes, are closed after a flush, and opened again by their next use. `StoreFiles`
counts the uses that are in progress: a store is never closed under a reader, a writer, a snapshot or a checkpoint. Its
offsets and counters stay in memory (`kv.KeyValueStore`), so that metrics, retention and descriptions do not open it.

At first only `STORES_AT_FIRST` may be open: thousands of stores that are used once would take memory for nothing. Each
store that is used again soon after it was closed for want of room lets one more be open.

Any thread may call everything here. Locks are taken in this order: `_changing` of one store, `_one_at_a_time`, the
others; a second store's `_changing` is only tried.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from rocksdict import DbClosedError

from headrace.broker.runtime import malloc
from headrace.broker.runtime.disk_errors import is_out_of_descriptors

if TYPE_CHECKING:
    from headrace.broker.runtime.ports import Clock

logger = logging.getLogger("headrace.tables")

FILES_OF_STORE: Final = 6
"""Files of an open store without its sorted tables: LOG, LOCK, MANIFEST, a write-ahead log, and its folder twice."""
FILES_MIN: Final = FILES_OF_STORE + 1
"""Files of an open store with one sorted table."""
STORES_AT_FIRST: Final = 500
"""Number of stores that may be open without need for more: 3,500 files and 125 MB."""
_CLOSED_TOGETHER: Final = 64
"""Maximum number of idle stores that one call closes: some hundred milliseconds of a thread."""
_TRIMMED_FROM: Final = 16
"""Number of closed stores from which their memory is given back to the system."""


class OpenStores:
    """The stores of a process that are open, the least recently used one first."""

    def __init__(self, clock: Clock, files_max: int, stores_max: int) -> None:
        self.files_max = files_max
        self.stores_max = stores_max
        self._allowed = min(STORES_AT_FIRST, stores_max)
        """Number of stores that may be open now."""
        self._missed: dict[StoreFiles, None] = {}
        """The stores that would still be open if `stores_max` were allowed, oldest first."""
        self.reopened = 0
        """Number of times that a closed store was opened again."""
        self._one_at_a_time = threading.Lock()
        """Held while a store is opened: RocksDB's binding keeps the interpreter lock meanwhile."""
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[StoreFiles, int] = {}
        self._used_at: dict[StoreFiles, float] = {}
        self._files = 0
        self._closed_since_trim = 0

    @property
    def count(self) -> int:
        """Number of open stores."""
        return len(self._open)

    @property
    def files(self) -> int:
        """Number of files that the open stores have, about."""
        return self._files

    def counted(self, store: StoreFiles, files: int) -> None:
        """Note that a store is open with that many files; 0 for a store that was closed."""
        with self._lock:
            self._files += files - self._open.pop(store, 0)
            if files:
                self._open[store] = files
                self._used_at[store] = self._clock.monotonic()
            else:
                self._used_at.pop(store, None)

    def used(self, store: StoreFiles) -> None:
        """Note that a store was used now."""
        with self._lock:
            files = self._open.pop(store, 0)
            if files:
                self._open[store] = files
                self._used_at[store] = self._clock.monotonic()

    def make_room(self, files: int = FILES_MIN) -> bool:
        """Close the least recently used stores until another one with that many files fits.

        Stores in use, and those that cannot be flushed, stay. Return whether any was closed.
        """
        closed = False
        for store in list(self._open):
            if len(self._open) < self._allowed and self._files + files <= self.files_max:
                break
            if store.close_unused():
                closed = True
                self._miss(store)
        return closed

    def opened(self, open_files: Callable[[], Any]) -> Any:
        """Make room for a store, and return the result of `open_files`. If the process can open no more files, close a
        store and call it once more.
        """
        self.make_room()
        try:
            with self._one_at_a_time:
                return open_files()
        except OSError as error:
            if not is_out_of_descriptors(error) or not self.close_one():
                raise
        with self._one_at_a_time:
            return open_files()

    def _miss(self, store: StoreFiles) -> None:
        with self._lock:
            self._missed[store] = None
            while len(self._missed) > self.stores_max - self._allowed:
                del self._missed[next(iter(self._missed))]

    def opened_again(self, store: StoreFiles) -> None:
        """Note that a store that was closed is in use again."""
        with self._lock:
            self.reopened += 1
            if store in self._missed:
                del self._missed[store]
                self._allowed = min(self.stores_max, self._allowed + 1)

    def ended(self, store: StoreFiles) -> None:
        """Forget a store that is never used again."""
        with self._lock:
            self._missed.pop(store, None)

    def close_one(self) -> bool:
        """Close the least recently used store that can be closed. Return False if there is none."""
        return any(store.close_unused() for store in list(self._open))

    def close_idle(self, seconds: float) -> int:
        """Close some stores that were not used for that long. Return their number."""
        before = self._clock.monotonic() - seconds
        with self._lock:
            idle = [store for store in self._open if self._used_at[store] <= before]
        closed = sum(store.close_unused() for store in idle[:_CLOSED_TOGETHER])
        self._closed_since_trim += closed
        with self._lock:
            if len(self._open) < STORES_AT_FIRST:
                self._allowed = min(STORES_AT_FIRST, self.stores_max)
                self._missed.clear()
        if len(idle) <= _CLOSED_TOGETHER and self._closed_since_trim >= _TRIMMED_FROM:
            self._closed_since_trim = 0
            malloc.give_back()
        return closed


class Owner(Protocol):
    """The store whose files are opened and closed."""

    def open_files(self) -> Any:
        """Open the files. Raises OSError and the errors of a damaged store."""

    def flush(self) -> None:
        """Write all rows to files. Raises if that is not possible."""

    @property
    def is_flushed(self) -> bool:
        """Whether all rows are in files."""

    def files_closed(self) -> None:
        """Note that all rows are in files, and that these are closed."""


class StoreFiles:
    """The files of one store, open while they are used, and for some time afterwards.

    As a context it gives the open database: `with files as database: ...`.
    """

    __slots__ = ("_changing", "_database", "_ended", "_lock", "_owner", "_stores", "_users")

    def __init__(self, stores: OpenStores, database: Any, owner: Owner) -> None:
        """`database` is None for a closed store."""
        self._stores = stores
        self._database = database
        self._owner = owner
        self._users = 0
        self._ended = False
        self._lock = threading.Lock()
        self._changing = threading.Lock()
        if database is not None:
            self.count()

    @property
    def is_open(self) -> bool:
        return self._database is not None

    def __enter__(self) -> Any:
        while True:
            database = self.try_use()
            if database is not None:
                return database
            self._reopen()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1

    def try_use(self) -> Any:
        """Begin a use, which `__exit__` ends, and return the database; None, and no use, if it is not open now."""
        with self._lock:
            database = self._database
            if database is None:
                return None
            self._users += 1
        self._stores.used(self)
        return database

    def hold(self) -> Use:
        """Begin a use that lasts until the result is ended or dropped."""
        self.__enter__()
        return Use(self)

    def count(self) -> None:
        """Count the store's files, which a flush and a merge change."""
        database = self.try_use()
        if database is None:
            return
        try:
            self._stores.counted(self, FILES_OF_STORE + len(database.live_files()))
        finally:
            self.__exit__()

    def _reopen(self) -> None:
        with self._changing:
            if self._database is not None:
                return
            if self._ended:
                raise DbClosedError("the key-value store is closed")
            self._database = self._stores.opened(self._owner.open_files)
        self._stores.opened_again(self)
        self.count()

    def close_unused(self) -> bool:
        """Flush and close the store unless it is in use. Return whether it was closed."""
        if self._users or not self._changing.acquire(blocking=False):
            return False
        try:
            if self._database is None:
                return False
            try:
                if not self._owner.is_flushed:
                    self._owner.flush()
            except Exception as error:  # noqa: BLE001 - the bucket's own flush finds and reports it
                logger.debug("a store stays open, because it cannot be flushed: %s", error)
                return False
            if not self._close(unless_used=True):
                return False
            self._owner.files_closed()
            return True
        finally:
            self._changing.release()

    def end(self) -> None:
        """Close the store for good. A use in progress may fail."""
        with self._changing:
            self._ended = True
            self._close(unless_used=False)
        self._stores.ended(self)

    def _close(self, *, unless_used: bool) -> bool:
        with self._lock:
            if unless_used and (self._users or not self._owner.is_flushed):
                return False
            database, self._database = self._database, None
        if database is None:
            return False
        self._stores.counted(self, 0)
        database.close()
        return True


class Use:
    """A use of a store that ends with this object, at the latest."""

    __slots__ = ("_files",)

    def __init__(self, files: StoreFiles) -> None:
        self._files: StoreFiles | None = files

    def end(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            files.__exit__()

    def __del__(self) -> None:
        self.end()
