from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]


def test_a_lazy_module_is_loaded_by_the_first_use_of_something_of_it_and_is_the_same_for_all() -> None:
    code = """
import sys
from threading import Thread
from headrace.protocol.loading.lazy import lazy_module

colors = lazy_module("colorsys")
assert "colorsys" not in sys.modules
found = []
threads = [Thread(target=lambda: found.append(colors.rgb_to_hls)) for _ in range(4)]
for each in threads: each.start()
for each in threads: each.join()
import colorsys
assert found == [colorsys.rgb_to_hls] * 4
assert "rgb_to_hls" in vars(colors), "the next time it is at hand"
try:
    colors.nothing_of_it
except AttributeError as error:
    assert "colorsys" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
