"""Random statements through every API, in the manner of SQLancer.

DuckDB computes the value of a condition for each row over a copy of the table. It decides the answers of `p`, `NOT p`
and `p IS NULL`, which partition the rows (TLP), the answer of a statement that cannot leave out a row (NoREC), and the
rows after UPDATE and DELETE. `HEADRACE_DIFFERENTIAL_SEED` and `HEADRACE_DIFFERENTIAL_SECONDS` choose the statements and
the duration.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.tablelayer.client import Connection
from headrace.tablelayer.tests.sql.conftest import Sql
from headrace.tablelayer.tests.sql.differential import queries
from headrace.tablelayer.tests.sql.differential.run import Report, Run, seed_and_seconds


def _must_be_right(report: Report) -> None:
    print(report)
    assert not report.faults, "\n".join([str(report), *report.faults])


@pytest.mark.slow
def test_statements_answer_as_their_conditions_say(sql: Sql, connection: Connection, tmp_path: Path) -> None:
    """The statements are the same each time, as many as there is time for, unless the environment asks for others."""
    seed, seconds = seed_and_seconds(12, seed=1)
    report = Run(seed, 51).questions(connection, sql.database, tmp_path, seconds, sys.maxsize)
    _must_be_right(report)
    assert report.asked.total() > 50


def test_names_that_an_alias_and_with_give_are_the_names(
    sql: Sql, connection: Connection, tmp_path: Path
) -> None:
    kinds = (queries.other_names, queries.defined_by_with, queries.unqualified_with)
    _must_be_right(Run(1).questions(connection, sql.database, tmp_path, 60, 1, kinds))


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_statements_answer_as_their_conditions_say_for_an_hour(
    sql: Sql, connection: Connection, tmp_path: Path
) -> None:
    seed, seconds = seed_and_seconds(3600)
    print(f"HEADRACE_DIFFERENTIAL_SEED={seed} HEADRACE_DIFFERENTIAL_SECONDS={seconds}")
    without = Run(seed).translations(seconds / 6, sys.maxsize)
    report = Run(seed).questions(connection, sql.database, tmp_path, seconds * 5 / 6, sys.maxsize)
    _must_be_right(without)
    _must_be_right(report)
