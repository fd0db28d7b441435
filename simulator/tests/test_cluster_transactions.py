"""Transactions over three whole brokers under seeded faults: all of each is read or nothing, and none hangs.

HEADRACE_SIM_SEED=17 pytest simulator/tests/test_cluster_transactions.py     # one seed again
HEADRACE_SIM_SEEDS=3000 pytest simulator/tests/test_cluster_transactions.py  # more of them
HEADRACE_SIM_SECONDS=3600 pytest -m soak simulator/tests/test_cluster_transactions.py
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from simulator.cluster_simulation import ClusterSimulation, simulate_cluster
from simulator.cluster_transactions import SpreadTransactions
from simulator.histories import Outcome, told
from simulator.replicated_simulation import ReplicatedSimulation

SEEDS = int(os.environ.get("HEADRACE_SIM_SEEDS", "5"))
SOAK_FIRST_SEED = 7_000_000
OPERATIONS = 150


class Replicated(ReplicatedSimulation):
    """The journals and the topic have a replica on each broker: every fault changes their leaders."""

    def broker_config(self) -> dict[str, str]:
        return super().broker_config() | {"transaction.state.log.replication.factor": "3"}


def run(seed: int, folder: Path, replicas: int = 1) -> SpreadTransactions:
    spread = SpreadTransactions(replicas)
    kind = ClusterSimulation if replicas == 1 else Replicated
    mode = None if replicas == 1 else ("kill", "power")[seed % 2]
    try:
        report = simulate_cluster(
            seed, folder, operations=OPERATIONS, mode=mode, workloads=lambda: [spread], kind=kind
        )
    except BaseException as error:
        error.add_note(f"seed {seed} (HEADRACE_SIM_SEED={seed} runs it again)")
        raise
    assert not report.problems, (
        f"seed {seed}, mode {report.mode} (HEADRACE_SIM_SEED={seed} runs it again):\n{told(report.problems)}"
    )
    return spread


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_transaction_over_several_brokers_is_whole_through_everything(
    tmp_path: Path, replicas: int
) -> None:
    only = os.environ.get("HEADRACE_SIM_SEED")
    seeds = range(SEEDS // replicas) if only is None else [int(only)]
    outcomes = [
        each.outcome for seed in seeds for each in run(seed, tmp_path / str(seed), replicas).transactions
    ]
    assert outcomes.count(Outcome.OK) > len(seeds)
    assert outcomes.count(Outcome.FAILED)


@pytest.mark.soak
def test_soak(tmp_path: Path) -> None:
    ends = time.monotonic() + float(os.environ.get("HEADRACE_SIM_SECONDS", "600"))
    seed = int(os.environ.get("HEADRACE_SIM_SEED", SOAK_FIRST_SEED))
    while time.monotonic() < ends:
        run(seed, tmp_path / str(seed), 1 + 2 * (seed % 2))
        seed += 1
