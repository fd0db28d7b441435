"""The part of a random condition that is sent to the server keeps the rows that DuckDB finds in a copy."""

from __future__ import annotations

from headrace.tablelayer.tests.sql.differential.run import Run, seed_and_seconds


def test_translated_conditions_keep_all_matching_rows() -> None:
    """The conditions are the same each time, unless the environment asks for others."""
    seed, _ = seed_and_seconds(0, seed=1)
    report = Run(seed).translations(seconds=200, rounds=16)
    print(report)
    assert not report.faults, "\n".join([str(report), *report.faults])
    assert report.conditions > 300
