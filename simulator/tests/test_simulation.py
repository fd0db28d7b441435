"""Whole brokers under seeded faults keep what they promise, and the same seed is the same run.

HEADRACE_SIM_SEED=17 pytest simulator/tests/test_simulation.py     # one seed again
HEADRACE_SIM_SEEDS=3000 pytest simulator/tests/test_simulation.py  # more of them
HEADRACE_SIM_SECONDS=3600 pytest -m soak simulator/tests/test_simulation.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.histories import told
from simulator.simulation import Report, simulate

SEEDS = int(os.environ.get("HEADRACE_SIM_SEEDS", "9"))
PARTS = 4
"""Number of groups of seeds, which may run at the same time."""
SOAK_FIRST_SEED = 1_000_000
MODES = ("kill", "power")


def check(report: Report) -> None:
    assert not report.problems, (
        f"seed {report.seed}, mode {report.mode} (HEADRACE_SIM_SEED={report.seed} runs it again):\n"
        f"{told(report.problems)}"
    )


def run(seed: int, folder: Path) -> Report:
    try:
        return simulate(seed, folder)
    except BaseException as error:
        error.add_note(f"seed {seed} (HEADRACE_SIM_SEED={seed} runs it again)")
        raise


def seeds(part: int) -> Iterator[int]:
    only = os.environ.get("HEADRACE_SIM_SEED")
    yield from range(part, SEEDS, PARTS) if only is None else [int(only)][part:]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS if "HEADRACE_SIM_SEED" not in os.environ else 1))
def test_promises_hold_under_random_faults(part: int, tmp_path: Path) -> None:
    faults = acknowledged = 0
    for seed in seeds(part):
        report = run(seed, tmp_path / str(seed))
        check(report)
        faults += report.faults
        acknowledged += report.acknowledged
    assert faults
    assert acknowledged


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_is_the_same_run(mode: str, tmp_path: Path) -> None:
    reports = [
        [simulate(seed, tmp_path / name / str(seed), operations=60, mode=mode) for seed in range(4)]
        for name in ("one", "again")
    ]
    assert reports[0] == reports[1]
    assert len({report.trace for report in reports[0]}) == 4


def test_the_same_seed_is_the_same_run_in_another_process(tmp_path: Path) -> None:
    """The trace does not depend on the order of sets."""
    code = (
        "import sys, pathlib; from simulator.simulation import simulate; "
        "print(simulate(5, pathlib.Path(sys.argv[1]), operations=60).trace)"
    )
    traces = {
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / order)],
            env={**os.environ, "PYTHONHASHSEED": order},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for order in ("1", "2")
    }
    assert len(traces) == 1


@pytest.mark.soak
def test_soak(tmp_path: Path) -> None:
    ends = time.monotonic() + float(os.environ.get("HEADRACE_SIM_SECONDS", "600"))
    seed = int(os.environ.get("HEADRACE_SIM_SEED", SOAK_FIRST_SEED))
    while time.monotonic() < ends:
        folder = tmp_path / str(seed)
        check(run(seed, folder))
        seed += 1
