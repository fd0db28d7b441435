"""kill -9 again and again under load: no acknowledged record is lost or doubled, and no offset has two values.

`make soak` runs the long ones; HEADRACE_SOAK_SECONDS and HEADRACE_SOAK_SEED set duration and seed.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from fault_load import Load, create_topic

from simulator.histories import check_log, read_segment, told

SOAK_SECONDS = float(os.environ.get("HEADRACE_SOAK_SECONDS", "6000"))
SOAK_SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "1"))
DESCRIPTORS_MAX = 200
MEGABYTES_MAX = 600


def kill_and_check(
    server, unique, durability: str, seconds: float, seed: int, pause: tuple[float, float]
) -> None:
    """Kill at random moments, at least three times, until the time is over."""
    rng = random.Random(seed)
    plain, transactional = unique("plain"), unique("tx")
    for topic in (plain, transactional):
        create_topic(server.address, topic, durability=durability, **{"segment.bytes": "200000"})
    kills, most = 0, [0, 0]
    deadline = time.monotonic() + seconds
    with Load(server.address, plain=plain, transactional=transactional, seed=seed) as load:
        while kills < 3 or time.monotonic() < deadline:
            load.wait_for_more(100)
            time.sleep(rng.uniform(*pause))
            most = [max(pair) for pair in zip(most, resources(server.process.pid), strict=True)]
            server.restart()
            kills += 1
        load.wait_for_more(100)
    problems = load.problems()
    figures = (
        f"durability={durability} seed={seed}: {kills} kills in {seconds:.0f} s, {load.figures()}; "
        f"at most {most[0]} MB and {most[1]} descriptors; {len(problems)} differences"
    )
    print(figures)
    assert not problems, told(problems)
    assert most[0] < MEGABYTES_MAX, figures
    assert most[1] < DESCRIPTORS_MAX, figures
    server.kill()
    for topic in (plain, transactional):
        for path in sorted((server.directory / "data").glob(f"{topic}-*/*.log"))[:-1]:
            # Only of segments that are not written any more; the last one may have grown since its indexes were
            # written.
            if path.with_suffix(".index").exists():
                assert not check_log(*read_segment(path)), path


def resources(pid: int) -> tuple[int, int]:
    """Return (resident megabytes, open descriptors)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20, len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.one_process("its descriptors, memory and files")
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="looks at /proc")
def test_d1_d2_d3_everything_survives_kills_under_load(own_server, unique) -> None:
    kill_and_check(own_server, unique, "power", 4, SOAK_SEED, (0.1, 0.6))


@pytest.mark.one_process("its descriptors, memory and files")
@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("durability", ["process", "power"])
def test_d1_d2_d3_soak(own_server, unique, durability) -> None:
    kill_and_check(own_server, unique, durability, SOAK_SECONDS / 2, SOAK_SEED, (2, 12))
