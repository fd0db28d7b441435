"""The twelve places of `test_failpoints.py` for Paimon: what is in the lake is read back by Paimon's own reader.

All cells run with `-m soak`; HEADRACE_SOAK_ROWS and HEADRACE_SOAK_SEED change length and keys.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.tablelayer.lake import paimon
from headrace.tablelayer.tests.lake.paimon_world import PaimonWorld
from headrace.tablelayer.tests.lake.test_failpoints import (
    KINDS,
    POINTS,
    ROWS,
    SEED,
    Tierer,
    failing,
    maintained,
    run_cell,
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class PaimonTierer(Tierer):
    adapter = paimon

    def break_in(self) -> None:
        self._through("_branch", "stage")
        self._through("_commit_on", "close")
        self._through("_load", "")
        self._through("_drop", "cleanup")
        put = self.lake._put  # type: ignore[attr-defined]
        self.lake._put = lambda *given: self.fault.at(  # type: ignore[attr-defined]
            "before CAS", lambda: self.fault.at("after CAS", lambda: put(*given))
        )
        write = self.lake._write_rows  # type: ignore[attr-defined]

        def write_rows(table: Any, base: Any, changes: Any) -> Any:
            fault = self.fault
            if fault.point == "write file" and fault.kind == "error" and not fault.fired:
                fault.fired = True
                changes = failing(changes)
            return fault.at("write file", lambda: write(table, base, changes))

        self.lake._write_rows = write_rows  # type: ignore[attr-defined]

    def _through(self, name: str, point: str) -> None:
        step: Callable[..., Any] = getattr(self.lake, name)
        setattr(self.lake, name, lambda *given: self.fault.at(point, lambda: step(*given)))


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["log", "pk"])
@pytest.mark.parametrize("fault", KINDS)
@pytest.mark.parametrize("point", POINTS)
def test_every_failpoint(
    spark: Any, warehouse: Path, monkeypatch: pytest.MonkeyPatch, point: str, fault: str, kind: str
) -> None:
    print(f"seed {SEED}, {ROWS} rows")
    world = PaimonWorld(spark, warehouse, maintained(kind, lake="paimon"))
    run_cell(world, PaimonTierer, monkeypatch, (point, fault), ROWS)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "point", "fault"), [("log", "after CAS", "kill")])
def test_some_failpoints(
    spark: Any, warehouse: Path, monkeypatch: pytest.MonkeyPatch, kind: str, point: str, fault: str
) -> None:
    world = PaimonWorld(spark, warehouse, maintained(kind, lake="paimon"))
    run_cell(world, PaimonTierer, monkeypatch, (point, fault), 100)
