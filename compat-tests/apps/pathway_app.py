"""A Pathway program: see README.md."""

import sys

import pathway as pw

bootstrap, source, target = sys.argv[1:4]


class Row(pw.Schema):
    k: int
    n: int


settings = {"bootstrap.servers": bootstrap, "group.id": f"pathway-{source}", "auto.offset.reset": "earliest"}
records = pw.io.kafka.read(settings, topic=source, format="json", schema=Row, autocommit_duration_ms=200)
rows = records.select(k=pw.this.k, doubled=2 * pw.this.n)
pw.io.kafka.write(rows, {"bootstrap.servers": bootstrap}, target, format="json")
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
