"""Give back the memory of LLVM, the compiler of the kernels: 70 MB that are not used once the kernels are loaded.

The pages are those of an unmodified file. A page that is taken out of the process stays in the system's cache, which
may drop it. It comes back by itself when another kernel is loaded (12 MB of them). Mappings that have pages of their
own (relocations) are left alone. Linux only; source: madvise(2), proc_pid_smaps(5).
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LIBRARY: Final = "libllvmlite.so"
WORTH_BYTES: Final = 8 << 20
"""Number of resident bytes below which nothing is given back."""
INTERVAL_SECONDS: Final = 10.0

_HEAD: Final = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+ +(.*)")
_SHARED: Final = 2  # field of /proc/self/statm
_DONTNEED: Final = 4


class CompilerMemory:
    """Gives back the compiler's memory in this process. Call `give_back` now and then, in a thread."""

    def __init__(self) -> None:
        self._shared_bytes = 0

    def give_back(self) -> int:
        """Take the clean pages out of the process and return their number of bytes.

        This costs microseconds unless pages of files were loaded since the last call.
        """
        if "llvmlite" not in sys.modules:
            return 0
        try:
            if _shared_bytes() < self._shared_bytes + WORTH_BYTES:
                return 0
            taken = sum(size for start, end, size in _clean_mappings() if _forget(start, end))
            self._shared_bytes = _shared_bytes()
        except (AttributeError, OSError):  # not Linux, or /proc is not readable
            return 0
        return taken


def _shared_bytes() -> int:
    """Return the number of bytes of files that are in this process's memory."""
    return int(Path("/proc/self/statm").read_bytes().split()[_SHARED]) * mmap.PAGESIZE


def _clean_mappings() -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, resident bytes) of the library's mappings that hold unmodified pages of the file only."""
    sizes: dict[bytes, int] = {}
    found: tuple[int, int] | None = None
    for line in Path("/proc/self/smaps").read_bytes().splitlines():
        head = _HEAD.fullmatch(line)
        if head is not None:
            start, end, rights, path = head.groups()
            is_ours = path.endswith(LIBRARY.encode()) and b"w" not in rights
            found, sizes = (int(start, 16), int(end, 16)) if is_ours else None, {}
        elif found is not None:
            name, _, value = line.partition(b":")
            if name in (b"Rss", b"Anonymous"):
                sizes[name] = int(value.split()[0]) << 10
            if len(sizes) == 2:
                if not sizes[b"Anonymous"] and sizes[b"Rss"]:
                    yield *found, sizes[b"Rss"]
                found = None


def _forget(start: int, end: int) -> bool:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return int(madvise(start, end - start, _DONTNEED)) == 0
