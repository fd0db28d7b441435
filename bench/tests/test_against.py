"""Another tree's server runs that tree's modules, and a figure's goal depends on its unit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import against, peers
from bench.processes import Server
from bench.report import Samples


def test_rates_may_not_fall_and_anything_else_may_not_rise() -> None:
    assert str(against.goal("produce 1 KB, records/s")) == "ratio >= 0.97"
    assert against.goal("latency at 1,000 msg/s of 1 KB, p99, ms").is_met(1.0, 1.0)
    assert not against.goal("latency at 1,000 msg/s of 1 KB, p99, ms").is_met(1.1, 1.0)
    assert not against.goal("memory, MB").is_met(104, 100)
    assert not against.goal("requests/s").is_met(96, 100)


def test_candidates_take_turns_at_starting_a_round() -> None:
    asked: list[str] = []

    def figures(name: str, value: float) -> Iterator[tuple[str, float, None]]:
        for figure in ("one/s", "other/s"):
            asked.append(name)
            yield figure, value, None

    samples = Samples(against.OTHER)
    for round_ in range(2):
        against.by_turns(samples, [("a", figures("a", 1.0)), ("b", figures("b", 2.0))], round_)
    assert asked == ["a", "b", "a", "b", "b", "a", "b", "a"]
    assert {name: list(by) for name, by in samples.values["one/s"].items()} == {
        "a": [1.0, 1.0],
        "b": [2.0, 2.0],
    }


def test_a_server_of_another_tree_has_that_trees_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = tmp_path / "tree" / "headrace" / "tablelayer" / "cli" / "main.py"
    main.parent.mkdir(parents=True)
    for folder in main.parents[:3]:
        (folder / "__init__.py").touch()
    main.write_text("print('this tree')\n")
    monkeypatch.chdir(Path(__file__).parents[2])
    with pytest.raises(RuntimeError, match="ended with 0"):
        peers.start_headrace(tmp_path, name="before", tree=tmp_path / "tree")
    assert (tmp_path / "headrace.out").read_text() == "this tree\n"


def test_servers_that_still_compile_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against, "REST_SECONDS", 0.001)
    spent = iter([0.0, 1.0, 1.0, 2.0, 2.0, 2.0])
    against.rest(lambda: next(spent))
    assert next(spent, None) is None
    monkeypatch.setattr(against, "REST_SECONDS_MAX", 0.0)
    busy = iter(range(10))
    with pytest.raises(TimeoutError):
        against.rest(lambda: float(next(busy)))


def test_the_clock_of_a_process_is_its_own() -> None:
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        spent = Server("x", process, 0, 0.0).cpu_seconds()
        process.kill()
    assert 0.5 <= spent < 1.0
