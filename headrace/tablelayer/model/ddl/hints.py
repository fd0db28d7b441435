"""Hints, `/*+ OPTIONS(...) */` after a table: a text in its `FOR VERSION AS OF`, and then the way to read the table."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot import exp

from headrace.tablelayer.model.ddl.query import ReadOptions
from headrace.tablelayer.model.ddl.tokens import hint_options


def marked(sql: str, hints: Sequence[tuple[int, int]]) -> str:
    """Return a query with each hint as the version of the table before it, which the parser reads."""
    pieces, at = list[str](), 0
    for start, end in hints:
        text = hint_text(sql, start, end).replace("'", "''")
        pieces += [sql[at:start], f" FOR VERSION AS OF '{text}' "]
        at = end
    return "".join((*pieces, sql[at:]))


def hint_text(sql: str, start: int, end: int) -> str:
    return sql[start + 3 : end - 2].strip()


_MOMENT = re.compile(r"\s*FOR\s+SYSTEM_TIME\b", re.IGNORECASE)


def before_moment(sql: str, end: int) -> bool:
    """Return whether FOR SYSTEM_TIME follows the hint that ends here, as in Flink's lookup joins."""
    return _MOMENT.match(sql, end) is not None


def notices_before_moment(text: str) -> list[str]:
    """Return notices of a hint whose options may not choose rows. Raises ValueError."""
    options, names = sorted_options(text)
    if options != ReadOptions():
        raise ValueError(
            "FOR SYSTEM_TIME AS OF says which rows are read, and so does this hint: leave one of them out"
        )
    return [_notice(names)] if names else []


def _notice(names: Sequence[str]) -> str:
    return f"the hint's {', '.join(names)} has no effect here"


def read_hints(tree: exp.Expr) -> tuple[int, list[str]]:
    """Read the options in the versions of tables. Return their number, and notices.

    Options that change nothing are removed. Raises ValueError for a hint that `sorted_options` refuses.
    """
    count, notices = 0, list[str]()
    for table in tree.find_all(exp.Table):
        version = table.args.get("version")
        if version is None or not is_hint(version):
            continue
        count += 1
        options, names = sorted_options(version.expression.this)
        if names:
            notices.append(_notice(names))
        if options == ReadOptions():
            table.set("version", None)
    return count, notices


def is_hint(version: exp.Version) -> bool:
    value = version.expression
    return isinstance(value, exp.Literal) and value.is_string and value.this.upper().startswith("OPTIONS")


def options_of(version: exp.Version) -> ReadOptions:
    """Return the options of a version that `is_hint`."""
    return sorted_options(version.expression.this)[0]


_NO_EFFECT = (
    "lookup.async", "lookup.cache", "lookup.partial-cache.", "lookup.max-retries", "lookup.full-cache.",
    "client.scanner.", "client.lookup.", "client.request-timeout", "client.writer.", "scan.parallelism",
    "scan.partition.discovery.interval", "scan.kv.snapshot.lease.",
)  # fmt: skip
"""Options of Flink and Fluss that change how fast rows are read, and not which."""
_SNAPSHOT = ("scan.snapshot-id", "snapshot-id")
_SNAPSHOT_TIME = ("scan.timestamp-millis", "as-of-timestamp")
_START, _START_TIME = "scan.startup.mode", "scan.startup.timestamp"
_STARTS = ("full", "earliest", "latest", "timestamp")


def sorted_options(text: str) -> tuple[ReadOptions, list[str]]:
    """Return the options of a hint, and the names of those without an effect. Raises ValueError."""
    options = hint_options(text)
    start: str | None = None
    time_text = snapshot = snapshot_time = None
    without_effect = []
    for name, value in options.items():
        if name in _SNAPSHOT:
            snapshot = _whole(name, value)
        elif name in _SNAPSHOT_TIME:
            snapshot_time = _whole(name, value)
        elif name == _START:
            if value.lower() not in _STARTS:
                raise ValueError(f"'{name}' = '{value}': the value must be one of {', '.join(_STARTS)}")
            start = value.lower()
        elif name == _START_TIME:
            time_text = value
        elif any(name == each or (each[-1] == "." and name.startswith(each)) for each in _NO_EFFECT):
            without_effect.append(f"'{name}'")
        else:
            known = ", ".join(f"'{each}'" for each in (_START, _START_TIME, *_SNAPSHOT, *_SNAPSHOT_TIME))
            raise ValueError(
                f"the hint's option '{name}' is not known; those of a table are {known}. A table in the past is"
                " FOR SYSTEM_TIME AS OF TIMESTAMP '2026-01-31 12:00:00'"
            )
    if (start == "timestamp") != (time_text is not None):
        raise ValueError(f"'{_START}' = 'timestamp' and '{_START_TIME}' go together: give both or neither")
    if sum(each is not None for each in (start, snapshot, snapshot_time)) > 1:
        raise ValueError("a hint says either where the changes start or which snapshot is read, not both")
    found = ReadOptions(None if start == "full" else start, time_text, snapshot, snapshot_time)
    return found, without_effect


def _whole(name: str, value: str) -> int:
    if not value.isdigit():
        raise ValueError(f"'{name}' = '{value}': the value must be a whole number")
    return int(value)
