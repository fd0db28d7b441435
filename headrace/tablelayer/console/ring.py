"""Series of numbers over the last hour and the last day, in one file of a fixed size, or in memory.

The file has a header, the names of the series, and two rings of rows with a number for each series: one row for every 5
seconds of an hour, one for every minute of a day. The place of a row follows from its time, so that nothing moves when
time goes on. A row of a minute has the means of what was put since it began. NaN is an unknown number.
"""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

SERIES_MAX: Final = 1100
STEPS_SECONDS: Final = (5, 60)
ROWS: Final = (720, 1440)
_MAGIC: Final = b"headrace ring 1\n"
_NAME_BYTES: Final = 320
_LAYOUT: Final = np.dtype(
    [
        ("magic", f"S{len(_MAGIC)}"),
        ("cluster", "S64"),
        ("names", f"S{_NAME_BYTES}", (SERIES_MAX,)),
        ("used", np.int64, (SERIES_MAX,)),
        ("numbers_fine", np.int64, (ROWS[0],)),
        ("numbers_coarse", np.int64, (ROWS[1],)),
        ("fine", np.float32, (ROWS[0], SERIES_MAX)),
        ("coarse", np.float32, (ROWS[1], SERIES_MAX)),
    ]
)
FILE_BYTES: Final = _LAYOUT.itemsize


class Ring:
    """The series of one cluster. All methods may be called from any thread."""

    def __init__(self, path: Path | None, cluster: str) -> None:
        """Open a file, or make it; None: keep the numbers in memory.

        A file of another cluster or another version begins again. Raises OSError, for example if another
        process has it open.
        """
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        if path is None:
            self._data: Any = np.zeros((), _LAYOUT)
        else:
            self._file = _opened(path)
            self._data = np.memmap(self._file, _LAYOUT, "r+", shape=())
        if self._data["magic"] != _MAGIC.rstrip() or self._data["cluster"] != cluster.encode():
            for name in _LAYOUT.names or ():
                self._data[name] = 0
            self._data["magic"], self._data["cluster"] = _MAGIC.rstrip(), cluster.encode()
        names = self._data["names"]
        self._places = {bytes(name): place for place, name in enumerate(names.tolist()) if name}
        self._sums = np.zeros(SERIES_MAX)
        self._counts = np.zeros(SERIES_MAX)

    @property
    def _rings(self) -> list[tuple[int, NDArray[np.int64], NDArray[np.float32]]]:
        data = self._data
        return [
            (STEPS_SECONDS[0], data["numbers_fine"], data["fine"]),
            (STEPS_SECONDS[1], data["numbers_coarse"], data["coarse"]),
        ]

    def put(self, seconds: float, values: Mapping[str, float]) -> None:
        """Add values at a time in seconds since 1970. A series that was not used for longest gives way to a new one."""
        with self._lock:
            places = [self._place(name, int(seconds)) for name in values]
            found = np.fromiter(values.values(), np.float64, len(values))
            for step, numbers, rows in self._rings:
                number = int(seconds) // step
                row = number % len(rows)
                if numbers[row] != number:
                    numbers[row] = number
                    rows[row] = np.nan
                    if step == STEPS_SECONDS[-1]:
                        self._sums[:] = self._counts[:] = 0
                if step == STEPS_SECONDS[-1]:
                    np.add.at(self._sums, places, found)
                    np.add.at(self._counts, places, 1)
                    rows[row, places] = self._sums[places] / self._counts[places]
                else:
                    rows[row, places] = found

    def read(self, names: Sequence[str], begin: float, end: float) -> list[tuple[int, list[float | None]]]:
        """Return (milliseconds since 1970, value of each name) in order; the rows of minutes if `begin` is long ago."""
        with self._lock:
            step, numbers, rows = self._rings[end - begin > STEPS_SECONDS[0] * ROWS[0]]
            wanted = np.arange(max(0, int(begin) // step), int(end) // step + 1)[-len(rows) :]
            known = wanted[numbers[wanted % len(rows)] == wanted]
            found = np.full((len(known), len(names)), np.nan, np.float32)
            for index, name in enumerate(names):
                place = self._places.get(_encoded(name))
                if place is not None:
                    found[:, index] = rows[known % len(rows), place]
        values = [[None if value != value else value for value in row] for row in found.tolist()]  # NaN
        return list(zip((known * step * 1000).tolist(), values, strict=True))

    def _place(self, name: str, now: int) -> int:
        encoded = _encoded(name)
        place = self._places.get(encoded)
        if place is None:
            place = int(self._data["used"].argmin())
            self._places.pop(bytes(self._data["names"][place]), None)
            self._places[encoded] = place
            self._data["names"][place] = encoded
            self._sums[place] = self._counts[place] = 0
            for _, _, rows in self._rings:
                rows[:, place] = np.nan
        self._data["used"][place] = now
        return place

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._data.flush()
                fcntl.flock(self._file, fcntl.LOCK_UN)  # the map has the file open as well
                self._file.close()
                self._file = None


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "replace")[:_NAME_BYTES]


def _opened(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    file = path.open("r+b", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_size != FILE_BYTES:
            file.truncate(0)
            file.truncate(FILE_BYTES)
    except OSError:
        file.close()
        raise
    return file
