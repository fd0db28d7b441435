"""`python -m examples.demo`: ten steps, each timed and checked. Exit code 0 only if every check holds.

The environment's LAKE chooses the lake: iceberg (default) or paimon. With LAKE_ON=s3 it is on an S3 server, which the
demo starts, instead of in a folder. With SECURE=1 everything goes over SASL_SSL,
each part as a user of its own with the rights that it needs. With HEADRACE_BROKERS=3 three brokers and a ZooKeeper are
in the place of the server.
"""

from __future__ import annotations

import os
import sys

from examples.cluster import on_three_brokers
from examples.demo.brokers import DemoOnBrokers
from examples.demo.steps import LAKE_VARIABLE, LAKES, PLACE_VARIABLE, Demo
from examples.stage import Stage


def main() -> int:
    stage = Stage("Headrace: Kafka clients, tables, Spark and the lake")
    lake = os.environ.get(LAKE_VARIABLE) or LAKES[0]
    if lake not in LAKES:
        sys.stderr.write(f"{LAKE_VARIABLE} is '{lake}', but must be one of {', '.join(LAKES)}\n")
        return 2
    place = os.environ.get(PLACE_VARIABLE) or "folder"
    if place not in ("folder", "s3"):
        sys.stderr.write(f"{PLACE_VARIABLE} is '{place}', but must be s3 or folder\n")
        return 2
    several = on_three_brokers()
    demo = (DemoOnBrokers if several else Demo)(
        stage, lake=lake, on_s3=place == "s3", secure=bool(os.environ.get("SECURE"))
    )
    steps = [
        ("Set-up: TPC-H data, Spark and its jars", demo.set_up),
        (
            "ZooKeeper and three brokers" if several else "The server: one process, nothing else",
            demo.start_server,
        ),
        ("Tables, in SQL", demo.create_tables),
        ("Load data by three clients", demo.load),
        ("The pipeline: stopped half way and started again", demo.run_half),
        (f"The crash: kill -9 of {'a broker' if several else 'the server'}", demo.fright),
        ("Ask it", demo.ask),
        (f"The lake: tiered into {lake.title()}{' on S3' if demo.on_s3 else ''}, exactly once", demo.tier),
        ("Union read: lake and log, while rows arrive", demo.union),
        ("The check: against DuckDB, to the cent", demo.verify),
    ]
    if demo.secure:
        steps.insert(3, ("Users and their rights", demo.let_in))
        steps.append(("Users and what they cannot do", demo.fence))
    return stage.run(steps, demo.close)


if __name__ == "__main__":
    sys.exit(main())
