"""Processor time of a tree of processes, some of which begin and end between two samples.

A process that has ended is in no listing. Its parent counts its time when it waits for it, but not if the parent
ignores its end, has ended itself, or has not waited yet; then the last sample is kept. So the sum never goes down.
Linux only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bench.processes import TICKS_PER_SECOND


class Process(NamedTuple):
    """One sample of a process. `started` tells it from others with the same number.

    `own` and `ended` (of children that have ended and were waited for) are seconds.
    """

    pid: int
    started: int
    parent: int
    own: float
    ended: float


def processes() -> dict[int, Process]:
    """Return all processes by number."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                own, ended = (sum(int(each) for each in fields[at : at + 2]) for at in (11, 13))
                found[int(entry.name)] = Process(
                    int(entry.name),
                    int(fields[19]),
                    int(fields[1]),
                    own / TICKS_PER_SECOND,
                    ended / TICKS_PER_SECOND,
                )
    return found


def below(roots: Iterable[int], there: Mapping[int, Process]) -> list[int]:
    """Return these processes and all below them."""
    children: dict[int, list[int]] = {}
    for each in there.values():
        children.setdefault(each.parent, []).append(each.pid)
    found = [root for root in dict.fromkeys(roots) if root in there]
    seen = set(found)
    for pid in found:
        new = [child for child in children.get(pid, ()) if child not in seen]
        seen.update(new)
        found += new
    return found


class CpuTimes:
    """The processor time of the process `root` and all that are or were below it, since the first sample."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._seen: dict[int, Process] = {}
        self._lost = 0.0

    def seconds(self, there: Mapping[int, Process]) -> float:
        """Return the seconds so far. A process without its parent still counts."""
        kept = (pid for pid, each in self._seen.items() if _is_same(each, there.get(pid)))
        now = {pid: there[pid] for pid in below([self._root, *kept], there)}
        gone = {pid: each for pid, each in self._seen.items() if not _is_same(each, now.get(pid))}
        missed: dict[int, float] = {}
        """Time of ended processes that no parent counted, by the living process above them; 0: none is left."""
        for each in gone.values():
            above = each.parent
            while above in gone:
                above = gone[above].parent
            above = above if above in now and above in self._seen else 0
            missed[above] = missed.get(above, 0.0) + each.own + each.ended
        for above, seconds in missed.items():
            noted = now[above].ended - self._seen[above].ended if above else 0.0
            self._lost += max(seconds - noted, 0.0)
        self._seen = now
        return self._lost + sum(each.own + each.ended for each in now.values())


def _is_same(seen: Process, now: Process | None) -> bool:
    return now is not None and now.started == seen.started
