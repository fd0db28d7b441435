"""`headrace tier` after a signal: it ends in any state, and reports only that."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
JOB = """
import time
from headrace.tablelayer.lake import tiering_job
from headrace.tablelayer.cli import tier

def run_tiering(*_, **__):
    said = "a round"
    while True:
        try:
            said = said and print(said, flush=True)
            time.sleep(600)
        except KeyboardInterrupt as interrupt:
            {then}

tiering_job.run_tiering = run_tiering
tier._GRACE_SECONDS = {grace}
tier.run(
    "127.0.0.1:1", (), (), databases=(), once=False, interval_s=1.0, warehouse=None, spark={{}}, parallelism=1,
    maintenance=None,
)
"""


def ended(
    then: str, signals: int, grace: float = 600, sent: signal.Signals = signal.SIGTERM
) -> tuple[int, str, str]:
    process = subprocess.Popen(
        [sys.executable, "-c", JOB.format(then=then, grace=grace)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "a round\n"
    for number in range(signals):
        process.send_signal(sent)
        if number + 1 < signals:
            assert process.stdout.readline() == "goes on\n"
    with process:
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(
    "then",
    [
        "raise",
        "raise RuntimeError('Answer from Java side is empty') from interrupt",
        "import logging; logging.exception('KeyboardInterrupt while sending command.'); raise",  # as py4j does
    ],
)
def test_a_signal_ends_the_job_without_a_traceback(then: str) -> None:
    code, out, err = ended(then, 1)
    assert code == 128 + signal.SIGTERM
    assert (out + err).strip() == "ended by a signal"


def test_ctrl_c_ends_the_job_as_a_signal_does() -> None:
    assert ended("raise", 1, sent=signal.SIGINT)[:2] == (128 + signal.SIGINT, "ended by a signal\n")
    assert ended("print('goes on', flush=True)", 1, 0.1, signal.SIGINT)[0] == 128 + signal.SIGINT


def test_a_job_that_does_not_end_is_ended() -> None:
    code, _, err = ended("print('goes on', flush=True)", 1, grace=0.1)
    assert (code, err) == (128 + signal.SIGTERM, "")


def test_a_second_signal_ends_a_job_that_does_not_end() -> None:
    code, _, err = ended("print('goes on', flush=True)", 2)
    assert (code, err) == (128 + signal.SIGTERM, "")
