"""The scenario: the data of three sources about (user, item), and the changelog that the wide table must have.

Recommendations give a score, impressions how often an item was shown, clicks how often it was clicked. Each source
writes the key and its own column into one table, without a join.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

KEY = ("user_id", "item_id")
WIDE_COLUMNS = (*KEY, "rec_score", "imp_cnt", "click_cnt")

Row = tuple[Any, ...]
Key = tuple[str, str]
Change = tuple[str, Row]
"""(change type as +I -U +U -D, row of WIDE_COLUMNS)."""

TABLES = """
CREATE DATABASE wide;
CREATE TABLE wide.recommendations (user_id STRING, item_id STRING, rec_score DOUBLE, rec_ts TIMESTAMP(3))
  WITH ('bucket.num' = '1');
CREATE TABLE wide.impressions (user_id STRING, item_id STRING, imp_cnt INT, imp_ts TIMESTAMP(3))
  WITH ('bucket.num' = '1');
CREATE TABLE wide.clicks (user_id STRING, item_id STRING, click_cnt INT, clk_ts TIMESTAMP(3))
  WITH ('bucket.num' = '1');
CREATE TABLE wide.user_rec_wide (
  user_id STRING, item_id STRING, rec_score DOUBLE, imp_cnt INT, click_cnt INT,
  PRIMARY KEY (user_id, item_id) NOT ENFORCED
) WITH ('bucket.num' = '3');
"""


@dataclass(frozen=True)
class Source:
    """One source table, the column it feeds, and its rows (user, item, value, time)."""

    table: str
    column: str
    rows: tuple[tuple[str, str, Any, str], ...]

    def insert(self) -> str:
        """Return the rows as SQL."""
        values = ", ".join(
            f"('{user}', '{item}', {'NULL' if value is None else value}, TIMESTAMP '{at}')"
            for user, item, value, at in self.rows
        )
        return f"INSERT INTO wide.{self.table} VALUES {values}"

    def widen(self, catalog: str) -> str:
        """Return the partial update of the wide table, in the SQL of both; `catalog` is Spark's, with a dot."""
        columns = ", ".join((*KEY, self.column))
        return f"INSERT INTO {catalog}wide.user_rec_wide ({columns}) SELECT {columns} FROM {catalog}wide.{self.table}"


SOURCES = (
    Source(
        "recommendations",
        "rec_score",
        (
            ("user_1", "lamp", 0.92, "2024-09-19 09:15:02"),
            ("user_1", "chair", 0.78, "2024-09-19 09:15:05"),
            ("user_2", "desk", 0.83, "2024-09-19 09:16:00"),
            ("user_3", "lamp", 0.67, "2024-09-19 09:16:20"),
            ("user_4", "shelf", 0.88, "2024-09-19 09:16:45"),
        ),
    ),
    Source(
        "impressions",
        "imp_cnt",
        (
            ("user_1", "lamp", 3, "2024-09-19 09:17:10"),
            ("user_1", "chair", 1, "2024-09-19 09:17:15"),
            ("user_2", "desk", 7, "2024-09-19 09:18:22"),
            ("user_3", "lamp", 4, "2024-09-19 09:18:30"),
            ("user_4", "shelf", 2, "2024-09-19 09:18:55"),
            ("user_1", "lamp", 5, "2024-09-19 09:19:01"),  # shown again
        ),
    ),
    Source(
        "clicks",
        "click_cnt",
        (
            ("user_1", "lamp", 1, "2024-09-19 09:19:05"),
            ("user_1", "chair", 2, "2024-09-19 09:19:07"),
            ("user_5", "rug", 1, "2024-09-19 09:19:12"),  # clicked without a recommendation
            ("user_3", "lamp", None, "2024-09-19 09:19:20"),  # a null is a value like any other
            ("user_4", "shelf", 1, "2024-09-19 09:19:25"),
        ),
    ),
)


def expected() -> tuple[list[tuple[Key, Change]], dict[Key, Row]]:
    """Apply the rules of partial update in plain Python: every change in write order, and the table at the end.

    Absent key: the other columns are null, +I. Present key: the source's column is overwritten, by null too, the others
    are kept, -U and +U.
    """
    table: dict[Key, Row] = {}
    changes: list[tuple[Key, Change]] = []
    for source in SOURCES:
        position = WIDE_COLUMNS.index(source.column)
        for user, item, value, _ in source.rows:
            key = (user, item)
            old = table.get(key)
            row = list(old if old is not None else (*key, None, None, None))
            row[position] = value
            table[key] = tuple(row)
            if old is None:
                changes.append((key, ("+I", table[key])))
            else:
                changes += [(key, ("-U", old)), (key, ("+U", table[key]))]
    return changes, table
