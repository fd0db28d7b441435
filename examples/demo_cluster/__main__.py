"""`python -m examples.demo_cluster`: three brokers and their faults. Exit code 0 only if every check holds."""

from __future__ import annotations

import sys

from examples.demo_cluster.steps import ClusterDemo
from examples.stage import Stage


def main() -> int:
    stage = Stage("Headrace: a cluster of three brokers, and their faults")
    demo = ClusterDemo(stage)
    steps = [
        ("Set-up: TPC-H data, Spark and its jars", demo.set_up),
        ("ZooKeeper and three brokers", demo.start_server),
        ("Tables with three replicas, in SQL", demo.create_tables),
        ("Load data by three clients", demo.load),
        ("Everything runs", demo.run_all),
        ("kill -9 of a leader", demo.kill_leader),
        ("kill -9 of the controller", demo.kill_controller),
        ("kill -9 of a follower", demo.kill_follower),
        ("A rolling restart", demo.roll),
        ("Add one broker, remove one", demo.replace_broker),
        ("Checks for losses, and the longest waits", demo.settle),
        (f"The lake: tiered into {demo.lake.title()}, exactly once", demo.tier),
        ("Union read: lake and log, while rows arrive", demo.union),
        ("The check: against DuckDB, to the cent", demo.verify),
    ]
    return stage.run(steps, demo.close)


if __name__ == "__main__":
    sys.exit(main())
