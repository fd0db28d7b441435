"""A Bytewax dataflow: see README.md."""

import json
import sys

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kafka
from bytewax.dataflow import Dataflow
from bytewax.testing import run_main

bootstrap, source, target = sys.argv[1:4]


def doubled(message):
    row = json.loads(message.value)
    return KafkaSinkMessage(
        str(row["k"]).encode(), json.dumps({"k": row["k"], "doubled": 2 * row["n"]}).encode()
    )


flow = Dataflow("doubled")
records = kafka.input("records", flow, brokers=[bootstrap], topics=[source])
op.inspect("errors", records.errs)
kafka.output("rows", op.map("double", records.oks, doubled), brokers=[bootstrap], topic=target)
run_main(flow)
