"""LLVM is out of memory once kernels are loaded, and back when another one is compiled."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.broker import server
from headrace.broker.runtime.compiler_memory import WORTH_BYTES, CompilerMemory
from simulator.direct import direct_broker

LOAD = """
import json
from headrace.broker.runtime.compiler_memory import CompilerMemory, _shared_bytes
compiler = CompilerMemory()
told = [compiler.give_back()]
from headrace.protocol.records import check
check.load()
before = _shared_bytes()
told += [compiler.give_back(), before - _shared_bytes(), compiler.give_back()]
from headrace.protocol.records import decode
decode.warm()
print(json.dumps(told))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system tells nothing of its memory")
def test_the_compiler_is_out_of_memory_when_it_has_loaded_a_kernel_and_loads_another() -> None:
    done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True)
    nothing_loaded, taken, less, again = json.loads(done.stdout)
    assert nothing_loaded == 0, "it has not been needed"
    assert taken > WORTH_BYTES, "all that is only the file's"
    assert less > taken / 2, "it is out of the process"
    assert again == 0, "nothing has come in since"


async def test_a_process_that_is_a_broker_looks_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = asyncio.Event()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(server, "INTERVAL_SECONDS", 0.001)
    monkeypatch.setattr(CompilerMemory, "give_back", lambda _: loop.call_soon_threadsafe(looked.set))
    async with direct_broker(tmp_path) as broker:
        running = asyncio.create_task(broker.broker.run_forever())
        try:
            async with asyncio.timeout(60):
                await looked.wait()
        finally:
            running.cancel()
            await asyncio.wait([running])
            gc.unfreeze()
