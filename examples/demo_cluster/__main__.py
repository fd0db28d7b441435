"""`python -m examples.demo_cluster`: three brokers, and what happens to them. Exit code 0 only if every check holds."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from examples.demo.__main__ import SHORT_LIVED_JVM
from examples.demo_cluster.steps import ClusterDemo
from examples.stage import Stage, StepFailedError


def end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> int:
    signal.signal(signal.SIGTERM, end)  # as Ctrl-C: whatever was started is ended
    os.environ.setdefault("JDK_JAVA_OPTIONS", SHORT_LIVED_JVM)
    stage = Stage("Headrace: a cluster of three, and what happens to its brokers")
    demo = ClusterDemo(stage)
    steps = [
        ("Set-up: TPC-H data, Spark and its jars", demo.set_up),
        ("ZooKeeper and three brokers", demo.start_server),
        ("Tables with three replicas, in SQL", demo.create_tables),
        ("Data in by three doors", demo.load),
        ("Everything runs", demo.run_all),
        ("kill -9 of a leader", demo.kill_leader),
        ("kill -9 of the controller", demo.kill_controller),
        ("kill -9 of a follower", demo.kill_follower),
        ("A rolling restart", demo.roll),
        ("One broker comes, one goes", demo.replace_broker),
        ("Nothing is lost, and who waited how long", demo.settle),
        (f"The lake: tiered into {demo.lake.title()}, exactly once", demo.tier),
        ("Union read: lake and log, while rows arrive", demo.union),
        ("The check: against DuckDB, to the cent", demo.verify),
    ]
    try:
        for title, run in steps:
            with stage.step(title):
                run()
    except StepFailedError as error:
        stage.fail(error)
    finally:
        demo.close()
    return stage.summary()


if __name__ == "__main__":
    sys.exit(main())
