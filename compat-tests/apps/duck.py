"""DuckDB reads the lake by its REST catalog: see README.md."""

import importlib
import json
import sys
from pathlib import Path

import duckdb

endpoint, token, namespace, table = sys.argv[1:5]
database = duckdb.connect()
for name in ("avro", "httpfs", "iceberg"):
    package = importlib.import_module(f"duckdb_extension_{name}")
    (extension,) = Path(package.__file__).parent.rglob("*.duckdb_extension")
    database.sql(f"LOAD '{extension}'")
database.sql(f"CREATE SECRET callers (TYPE iceberg, TOKEN '{token}')")
database.sql(f"ATTACH 'lake' AS lake (TYPE iceberg, ENDPOINT '{endpoint}', SECRET callers)")
print(json.dumps(database.sql(f"SELECT * FROM lake.{namespace}.{table} ORDER BY ALL").fetchall()))
