"""Consume, transform, produce, exactly once: `copier.py ADDRESS INPUT OUTPUT GROUP ID COUNT`.

It copies records of one topic into another, in transactions that also commit its offsets, a few at a time, until the
group has passed COUNT records. It can be killed and started again at any moment.

librdkafka must not look for its brokers again (`metadata.recovery.strategy`). When its only broker is away for a
moment, it forgets the broker, but not that the broker was the group's coordinator. Then
`send_offsets_to_transaction` waits for it without end, whatever its timeout, and sends no request
(confluentinc/librdkafka#5511 and #5456). The same happens against Apache Kafka 4.3.1: FINDINGS.md.
"""

import faulthandler
import signal
import sys

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

PER_TRANSACTION = 20
TIMEOUT = 20
STEADY = {"metadata.recovery.strategy": "none", "reconnect.backoff.max.ms": 500}


def main(address, source, target, group, transactional_id, count):
    producer = Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 10_000,
            **STEADY,
        }
    )
    producer.init_transactions(TIMEOUT)
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **STEADY,
        }
    )
    (position,) = consumer.committed([TopicPartition(source, 0)], TIMEOUT)
    at = max(position.offset, 0)
    consumer.assign([TopicPartition(source, 0, at)])
    print("begins", at, flush=True)
    while at < count:
        messages = [m for m in consumer.consume(PER_TRANSACTION, 1.0) if not m.error()]
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, message.value(), partition=0)
        at = messages[-1].offset() + 1
        producer.send_offsets_to_transaction(
            [TopicPartition(source, 0, at)], consumer.consumer_group_metadata(), TIMEOUT
        )
        try:
            producer.commit_transaction(TIMEOUT)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(TIMEOUT)
            raise
        print("copied", at, flush=True)
    consumer.close()


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # prints where it hangs
    main(*sys.argv[1:6], int(sys.argv[6]))
