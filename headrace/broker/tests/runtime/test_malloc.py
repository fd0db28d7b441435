"""Freed memory is used again: batches that come and go cause no page faults."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.broker.runtime.malloc import keep_freed_memory

ROUNDS = 50
COUNT_FAULTS = f"""
import resource
{{first}}
def batches():
    one, two = bytearray(2 << 20), bytearray(2 << 20)
for _ in range(5):
    batches()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    batches()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(first: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", COUNT_FAULTS.format(first=first)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_batches_that_come_and_go_cost_no_page_faults() -> None:
    if not keep_freed_memory():
        pytest.skip("the C library is not glibc")
    assert faults("") > ROUNDS * 100, "glibc gives two of them back by itself: the test shows something"
    assert (
        faults("from headrace.broker.runtime.malloc import keep_freed_memory; keep_freed_memory()") < ROUNDS
    )
