"""Plans as trees: DuckDB's operators, and below them how the tables are read from the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from headrace.tablelayer.sql.select import Plan
    from headrace.tablelayer.sql.sources import Step

_LEFT_OUT: Final = ("Estimated Cardinality", "Table", "Type", "Table Index", "Projections")
"""Details of DuckDB about tables that are empty while it plans, and those that `Step` has, too."""


class Node(msgspec.Struct, frozen=True):
    """An operator, with the rows of `children` as its input."""

    name: str
    details: Mapping[str, str] = {}
    children: tuple[Node, ...] = ()


def tree_of(plan: Plan) -> Node:
    """Return the plan of a query as a tree. Raises SqlError for errors of DuckDB."""
    steps = {step.reads: _read(step) for step in plan.steps}
    if plan.operators is None:
        return Node("answer", {}, tuple(steps.values()))
    tables, found = plan.operators()
    children = tuple(
        _operator(each, {name: steps[table] for name, table in tables.items()}) for each in found
    )
    return Node("DuckDB", {}, children)


def _read(step: Step) -> Node:
    details = {"way": step.way, "columns": step.columns, "rows where": step.filter}
    return Node(f"read {step.reads}", {name: text for name, text in details.items() if text})


def _operator(found: Mapping[str, Any], steps: Mapping[str, Node]) -> Node:
    about = found.get("extra_info", {})
    details = {name.lower(): _text(value) for name, value in about.items() if value and name not in _LEFT_OUT}
    table = str(about.get("Table", "")).rpartition(".")[2]
    if table in steps:
        read = steps[table]
        return Node(read.name, {**read.details, **details})
    children = tuple(_operator(each, steps) for each in found.get("children", ()))
    return Node(found["name"].strip().lower().replace("_", " "), details, children)


def _text(value: str | Iterable[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)
