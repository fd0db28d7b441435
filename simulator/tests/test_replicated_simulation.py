"""Three brokers with a replica each of every partition keep what they promise under seeded faults.

HEADRACE_SIM_SEED=17 pytest simulator/tests/test_replicated_simulation.py     # one seed again
HEADRACE_SIM_SEEDS=3000 pytest simulator/tests/test_replicated_simulation.py  # more of them
HEADRACE_SIM_SECONDS=3600 pytest -m soak simulator/tests/test_replicated_simulation.py
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from simulator.histories import told
from simulator.replicated_simulation import MODES, simulate_replication
from simulator.simulation import Report

SEEDS = int(os.environ.get("HEADRACE_SIM_SEEDS", "5"))
FIRST_SEED = 8  # the seeds that kill the mutants of this test
SOAK_FIRST_SEED = 4_000_000


def run(seed: int, folder: Path) -> Report:
    try:
        report = simulate_replication(seed, folder)
    except BaseException as error:
        error.add_note(f"seed {seed} (HEADRACE_SIM_SEED={seed} runs it again)")
        raise
    assert not report.problems, (
        f"seed {seed}, mode {report.mode} (HEADRACE_SIM_SEED={seed} runs it again):\n{told(report.problems)}"
    )
    return report


@pytest.mark.slow
def test_replicas_keep_what_was_acknowledged_through_everything(tmp_path: Path) -> None:
    only = os.environ.get("HEADRACE_SIM_SEED")
    seeds = range(FIRST_SEED, FIRST_SEED + SEEDS) if only is None else [int(only)]
    reports = [run(seed, tmp_path / str(seed)) for seed in seeds]
    assert sum(report.faults for report in reports)
    assert sum(report.acknowledged for report in reports)


@pytest.mark.slow
def test_the_same_seed_is_the_same_run(tmp_path: Path) -> None:
    seeds = range(len(MODES))
    runs = [
        [
            simulate_replication(seed, tmp_path / name / str(seed), operations=60, mode=mode)
            for seed, mode in zip(seeds, MODES, strict=True)
        ]
        for name in ("one", "other")
    ]
    assert runs[0] == runs[1]
    assert all(report.trace for report in runs[0])


@pytest.mark.soak
def test_soak(tmp_path: Path) -> None:
    ends = time.monotonic() + float(os.environ.get("HEADRACE_SIM_SECONDS", "600"))
    seed = int(os.environ.get("HEADRACE_SIM_SEED", SOAK_FIRST_SEED))
    while time.monotonic() < ends:
        run(seed, tmp_path / str(seed))
        seed += 1
