"""Random tables of every kind and random operations on them, for the model tests."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from typing import Any

from headrace.tablelayer.model.ddl.clauses import parse_columns
from headrace.tablelayer.model.options.table_options import MergeEngine
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.tests.server.oracle import Operation, Row, bitmap32, bitmap64

KEY = ("k1", "k2")
DEFAULTS = {"a": "7", "c": "'dflt'", "f": "-5", "g": "TRUE", "i": "'2024-09-19'"}
TYPES = {
    "a": "TINYINT", "b": "DECIMAL(10, 2)", "c": "STRING", "d": "TIMESTAMP(3)", "e": "DOUBLE", "f": "BIGINT",
    "g": "BOOLEAN", "h": "FLOAT", "i": "DATE", "j": "DECIMAL(30, 3)", "x": "BYTES", "y": "BYTES",
    "v": "INT", "w": "TIMESTAMP_LTZ(6)", "n": "ARRAY<ROW<p INT, q STRING NOT NULL>>", "m": "MAP<STRING, DECIMAL(5, 1)>",
}  # fmt: skip
ANY = ["last_value", "last_value_ignore_nulls", "first_value", "first_value_ignore_nulls"]
ORDERED = [*ANY, "max", "min"]
NUMERIC = [*ORDERED, "sum", "product"]
FUNCTIONS = {
    "a": NUMERIC, "b": NUMERIC, "c": [*ORDERED, "listagg", "string_agg"], "d": ORDERED, "e": NUMERIC, "f": NUMERIC,
    "g": [*ANY, "bool_and", "bool_or"], "h": NUMERIC, "i": ORDERED, "j": NUMERIC, "x": [*ANY, "rbm32"],
    "y": [*ANY, "rbm64"], "n": ANY, "m": ANY, "v": NUMERIC, "w": ORDERED,
}  # fmt: skip


def random_definition(rng: random.Random, name: str = "t") -> TableDefinition:
    """A table with some of the columns, any engine, delete behaviour, image and perhaps an auto-increment column."""
    columns = rng.sample(sorted(TYPES), rng.randint(2, 6))
    engine = rng.choice([None, None, *MergeEngine, MergeEngine.AGGREGATION])
    options: dict[str, str] = {}
    if engine is not None:
        options["table.merge-engine"] = engine.value
    if engine is MergeEngine.VERSIONED:
        version = rng.choice("fdvw")
        columns = sorted({*columns, version})
        options["table.merge-engine.versioned.ver-column"] = version
    if engine is MergeEngine.AGGREGATION:
        for column in columns:
            if rng.random() < 0.9:
                function = rng.choice(FUNCTIONS[column])
                options[f"fields.{column}.agg"] = function
                if function in ("listagg", "string_agg") and rng.random() < 0.5:
                    options[f"fields.{column}.{function}.delimiter"] = rng.choice([";", "", " und "])
    elif rng.random() < 0.3:
        options["table.changelog.image"] = "WAL"
    if rng.random() < 0.7:
        behaviors = ["IGNORE", "DISABLE"]
        if engine in (None, MergeEngine.AGGREGATION):
            behaviors += ["ALLOW", "ALLOW", "ALLOW"]
        options["table.delete.behavior"] = rng.choice(behaviors)
    some = random.Random(rng.getstate()[1][0])  # without taking numbers of `rng`
    defaults = {name: f" DEFAULT {text}" for name, text in DEFAULTS.items() if some.random() < 0.5}
    text = ", ".join(f"{column} {TYPES[column]}{defaults.get(column, '')}" for column in columns)
    if rng.random() < 0.3:
        text += ", number BIGINT"
        options["auto-increment.fields"] = "number"
        options["table.auto-increment.cache-size"] = rng.choice(["1", "7", "1000"])
    schema = parse_columns(f"k1 INT, {text}, k2 STRING, PRIMARY KEY (k1, k2) NOT ENFORCED")
    return TableDefinition(TablePath("default", name), schema, options=options)


def random_value(rng: random.Random, column: str) -> Any:
    if rng.random() < 0.2:
        return None
    match column:
        case "a":
            return rng.choice([rng.randint(-3, 3), rng.randint(-128, 127)])
        case "b":
            return Decimal(
                rng.choice([rng.randint(-300, 300), rng.randint(-(10**10) + 1, 10**10 - 1)])
            ).scaleb(-2)
        case "c":
            return rng.choice(["", "x", "text", "ü", "日本"])
        case "d":
            return datetime.datetime(2024, 9, 19, 12, 0, rng.randrange(60))
        case "e" | "h":
            edges = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0]
            return rng.choice([0.5, -1.25, 3.0, float(rng.randint(-50, 50)), rng.choice(edges)])
        case "n":
            inside = [None, {"p": None, "q": "é"}, {"p": rng.randint(-9, 9), "q": ""}]
            return rng.choices(inside, k=rng.randint(0, 3))
        case "m":
            keys = rng.sample(["", "a", "日本"], rng.randint(0, 3))
            return [(key, rng.choice([None, Decimal(rng.randint(-9, 9)) / 2])) for key in keys]
        case "f":
            return rng.choice([rng.randint(-5, 5), rng.randint(-(2**63), 2**63 - 1)])
        case "g":
            return rng.random() < 0.5
        case "v":
            return rng.choice([rng.randint(-5, 5), -(2**31), 2**31 - 1])
        case "w":
            year = rng.choice([1, 1969, 1970, 2024])
            return datetime.datetime(year, 1, 1, 0, 0, rng.randrange(3), rng.randrange(3), datetime.UTC)
        case "i":
            return datetime.date(2024, 1, rng.randint(1, 28))
        case "j":
            return Decimal(rng.choice([rng.randint(-3000, 3000), rng.randint(-(10**29), 10**29)])).scaleb(-3)
        case "x":
            start = rng.choice([0, 65530, 1 << 20])
            size = rng.choice([0, 1, 3, 40, 200])
            return bitmap32({start + value * rng.choice([1, 1, 7]) for value in range(size)})
        case "y":
            return bitmap64({rng.choice([5, 1 << 40]) + value for value in range(rng.choice([0, 1, 3, 40]))})
    raise AssertionError(column)


def random_batch(
    rng: random.Random, definition: TableDefinition, *, keys: int = 8
) -> tuple[list[Operation], list[str] | None, bool]:
    """Return operations, the target columns of the batch (None: all), and whether it overwrites."""
    settings, schema = definition.settings, definition.schema
    names = [name for name in schema.names if name not in KEY and name != settings.auto_increment_column]
    columns: list[str] | None = None
    overwrite = False
    if settings.merge_engine in (None, MergeEngine.AGGREGATION):
        if rng.random() < 0.4:
            chosen = set(rng.sample(names, rng.randint(0, len(names) - 1)))
            columns = [name for name in schema.names if name in chosen or name in KEY]
        elif rng.random() < 0.15:
            overwrite = True
    operations: list[Operation] = []
    deletes = 0.25 if settings.delete_behavior != "DISABLE" else rng.choice([0, 0, 0, 0.1])
    for _ in range(rng.choice((1, 2, 5, 30, 150))):
        row: Row = {name: random_value(rng, name) for name in names}
        if settings.auto_increment_column is not None:
            row[settings.auto_increment_column] = None
        row["k1"], row["k2"] = rng.randrange(keys), rng.choice(["", "x", "x\x00", "ü"])
        operations.append(
            (
                "-" if rng.random() < deletes else "+",
                {name: row[name] for name in (schema.names if columns is None else columns)},
            )
        )
    return operations, columns, overwrite
