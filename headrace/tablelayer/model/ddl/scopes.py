"""The scopes of the names that WITH gives to queries."""

from __future__ import annotations

from sqlglot import exp


def defining(table: exp.Table) -> exp.CTE | None:
    """Return the query of a WITH that a table's name refers to; None if the name is a table's own.

    It is in a WITH around the table, or earlier in the same WITH.
    """
    name = table.name.lower()
    inner: exp.Expr = table
    outer = table.parent
    while outer is not None:
        visible: list[exp.CTE] = []
        if isinstance(outer, exp.With):
            place = next(index for index, each in enumerate(outer.expressions) if each is inner)
            visible = outer.expressions[: place + bool(outer.args.get("recursive"))]
        elif isinstance(with_ := outer.args.get("with_"), exp.With) and with_ is not inner:
            visible = with_.expressions
        for each in reversed(visible):
            if each.alias_or_name.lower() == name:
                return each
        inner, outer = outer, outer.parent
    return None
