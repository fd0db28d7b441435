"""The page's scripts in the JavaScript engine that Playwright brings: numbers, records, lists, buttons, rights."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable

NODE = Path(compute_driver_executable()[0])


@pytest.mark.parametrize("name", ["numbers", "records", "lists", "buttons", "rights"])
def test_the_scripts_of_the_page(name: str) -> None:
    done = subprocess.run(
        [NODE, Path(__file__).with_name("scripts.mjs"), name],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "checked\n"), done.stderr
