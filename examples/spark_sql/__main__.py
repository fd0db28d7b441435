"""`python -m examples.spark_sql [HOST:PORT]`: a notebook's worth of Spark SQL over tables.

Without an address it starts a server of its own, with HEADRACE_BROKERS=3 three brokers and a ZooKeeper. Needs Java 17
or 21 and `pip install 'headrace[spark]'`. Each cell of `shop.sql` is printed with what it gives; the last one has to
find that all is as it should be.

`--own` makes the session as one's own program would: Spark's builder, the jars by name, the catalog by its settings.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from examples.cluster import Cluster, on_three_brokers
from examples.server import Server

CELLS = Path(__file__).with_name("shop.sql")


def cells() -> Iterator[tuple[str, list[str]]]:
    """The title and the statements of each cell."""
    for part in re.split(r"^-- # ", CELLS.read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        yield title, [each.strip() for each in text.split(";") if each.strip()]


def session_of_ones_own(server: str) -> Any:
    """Return a session as a program without `headrace.spark` makes it."""
    from pyspark.sql import SparkSession

    command = [sys.executable, "-m", "headrace.tablelayer.spark.jars"]
    jars = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    builder = SparkSession.builder.master("local[2]").appName("shop").config("spark.jars", ",".join(jars))
    builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    prefix = "spark.sql.catalog.headrace"
    builder = builder.config(prefix, "headrace.spark.HeadraceCatalog")
    builder = builder.config(f"{prefix}.bootstrap.servers", server)
    return builder.config(f"{prefix}.python", sys.executable).getOrCreate()


def session_of_ours(server: str) -> Any:
    from headrace.spark import session

    return session("shop", extra={"spark.headrace.bootstrap.servers": server})


@contextmanager
def server_of_our_own() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="headrace-example-") as folder:
        place = Path(folder)
        server = Cluster.of_three(place) if on_three_brokers() else Server(place / "data", place / "log")
        server.start()
        try:
            yield server.address
        finally:
            server.stop()


def run(spark: Any) -> bool:
    """Run all cells. Return whether the last one reports success."""
    rows: list[Any] = []
    for title, statements in cells():
        print(f"\n# {title}")
        for statement in statements:
            print(f"\n{statement};")
            frame = spark.sql(statement)
            if frame.columns:
                frame.show(truncate=False)
                rows = frame.collect()
    return rows == [(True,)]


def main(arguments: list[str]) -> int:
    make = session_of_ones_own if "--own" in arguments else session_of_ours
    addresses = [each for each in arguments if not each.startswith("-")]
    if addresses:
        return 0 if run(make(addresses[0])) else 1
    with server_of_our_own() as address:
        return 0 if run(make(address)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
