"""The sum of processor times never goes down, however its processes end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from bench.cpu_times import CpuTimes, Process, processes

ROOT = 10


def there(*found: tuple[int, int, float, float]) -> dict[int, Process]:
    """Build processes from (number, parent, own seconds, seconds of ended children)."""
    return {pid: Process(pid, 100 + pid, parent, own, ended) for pid, parent, own, ended in found}


def test_an_ended_child_without_a_wait_counts_with_its_last_sample() -> None:
    times = CpuTimes(ROOT)
    assert times.seconds(there((ROOT, 1, 1.0, 0.0), (11, ROOT, 5.0, 0.5))) == 6.5
    assert times.seconds(there((ROOT, 1, 2.0, 0.0))) == 7.5
    assert times.seconds(there((ROOT, 1, 3.0, 0.0))) == 8.5


def test_an_ended_child_that_was_waited_for_counts_once() -> None:
    times = CpuTimes(ROOT)
    assert times.seconds(there((ROOT, 1, 1.0, 0.0), (11, ROOT, 5.0, 0.0))) == 6.0
    assert times.seconds(there((ROOT, 1, 1.0, 5.2))) == 6.2, "0.2 since the look before"


def test_a_child_that_ended_with_its_parent_counts_once() -> None:
    tree = there((ROOT, 1, 1.0, 0.0), (11, ROOT, 2.0, 0.0), (12, 11, 4.0, 0.0), (13, 12, 8.0, 0.0))
    times = CpuTimes(ROOT)
    assert times.seconds(tree) == 15.0
    assert times.seconds(there((ROOT, 1, 1.0, 6.0))) == 15.0, "the last process was not waited for"
    times = CpuTimes(ROOT)
    assert times.seconds(tree) == 15.0
    assert times.seconds(there((ROOT, 1, 1.0, 0.0))) == 15.0


def test_an_orphaned_process_still_counts() -> None:
    times = CpuTimes(ROOT)
    times.seconds(there((ROOT, 1, 1.0, 0.0), (11, ROOT, 2.0, 0.0), (12, 11, 4.0, 0.0)))
    assert times.seconds(there((ROOT, 1, 1.0, 2.0), (12, 1, 6.0, 0.0), (13, 12, 1.0, 0.0))) == 10.0
    assert times.seconds(there((ROOT, 1, 1.0, 2.0))) == 10.0


def test_a_reused_process_id_is_another_process() -> None:
    times = CpuTimes(ROOT)
    times.seconds(there((ROOT, 1, 1.0, 0.0), (11, ROOT, 5.0, 0.0)))
    found = {ROOT: Process(ROOT, 110, 1, 1.0, 5.0), 11: Process(11, 999, ROOT, 0.25, 0.0)}
    assert times.seconds(found) == 6.25
    found = {ROOT: Process(ROOT, 110, 1, 1.0, 5.0), 11: Process(11, 1000, 1, 70.0, 0.0)}
    assert times.seconds(found) == 6.25, "a process outside the tree"


@pytest.mark.parametrize("seed", range(50))
def test_the_sum_never_goes_down(seed: int) -> None:
    rng = random.Random(seed)
    alive = {ROOT: Process(ROOT, 0, 1, 0.0, 0.0)}
    times, before, number = CpuTimes(ROOT), 0.0, ROOT
    for _ in range(200):
        for _ in range(rng.randrange(4)):
            pid = rng.choice(list(alive))
            if rng.random() < 0.4:
                number += 1
                alive[number] = Process(number, number, pid, 0.0, 0.0)
            elif rng.random() < 0.5:
                alive[pid] = alive[pid]._replace(own=alive[pid].own + rng.random())
            elif pid != ROOT:
                ended = alive.pop(pid)
                if ended.parent in alive and rng.random() < 0.5:
                    parent = alive[ended.parent]
                    alive[ended.parent] = parent._replace(ended=parent.ended + ended.own + ended.ended)
                for child in [each for each in alive.values() if each.parent == pid]:
                    alive[child.pid] = child._replace(parent=1)
        now = times.seconds(alive)
        assert now >= before - 1e-9
        before = now


def test_a_real_worker_that_ends_unnoticed_is_not_forgotten() -> None:
    """The worker's parent ignores its end, as the parents of Spark's workers sometimes do."""
    worker_code = (
        "import sys, time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
        "print(1, flush=True)\nsys.stdin.read()"
    )
    code = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGCHLD, signal.SIG_IGN);"
        f" p = subprocess.Popen([sys.executable, '-c', {worker_code!r}],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE); p.stdout.readline(); print(p.pid, flush=True); input();"
        " p.stdin.close(); p.stdout.read(); print('ended', flush=True); input()"
    )
    times = CpuTimes(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        before = times.seconds(processes())
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "ended\n"
        deadline = time.monotonic() + 30
        while worker in processes() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert worker not in processes()
        assert times.seconds(processes()) >= before
        parent.send_signal(signal.SIGKILL)
