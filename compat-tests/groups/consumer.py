"""A consumer in a process of its own, so that it can be killed: `consumer.py CLIENT ADDRESS GROUP TOPIC [INSTANCE]`.

It prints a line per event: `assigned 0,2`, `got PARTITION OFFSET VALUE`, `committed`. It commits after every poll that
returned records, and leaves the group on SIGTERM.
"""

import asyncio
import contextlib
import faulthandler
import os
import signal
import sys
import time

SESSION_MS = int(os.environ.get("SESSION_MS", "1500"))
HEARTBEAT_MS = 200
COMMIT_ATTEMPTS = 20
LOST_ANSWERS = (
    "_TRANSPORT", "_TIMED_OUT", "_WAIT_COORD", "_TIMED_OUT_QUEUE", "REQUEST_TIMED_OUT", "COORDINATOR_LOAD_IN_PROGRESS",
)  # fmt: skip
TAKEN_AWAY = (
    "ILLEGAL_GENERATION",
    "STALE_MEMBER_EPOCH",
    "UNKNOWN_MEMBER_ID",
    "REBALANCE_IN_PROGRESS",
    "_ASSIGNMENT_LOST",
)


def say(*words):
    print(*words, flush=True)


def assigned(partitions):
    say("assigned", ",".join(str(partition) for partition in sorted(partitions)) or "none")


class Stop:
    def __init__(self):
        self.wanted = False
        signal.signal(signal.SIGTERM, self.set)

    def set(self, *_):
        self.wanted = True
        faulthandler.dump_traceback_later(30)  # says which call of the client does not end


def run_confluent(address, group, topic, instance, **settings):
    """Run confluent-kafka. `settings` choose another assignor or protocol, under which assignments come as
    differences.
    """
    from confluent_kafka import Consumer, KafkaException

    def commit(message):
        """Commit, and once more if the answer is lost with its connection, which librdkafka leaves to the
        application. Return whether the rebalance allowed it.
        """
        attempts_left = COMMIT_ATTEMPTS
        while True:
            attempts_left -= 1
            try:
                consumer.commit(message, asynchronous=False)
            except KafkaException as error:
                if error.args[0].name() in TAKEN_AWAY:
                    return False
                if not attempts_left or error.args[0].name() not in LOST_ANSWERS:
                    raise
                time.sleep(0.2)
            else:
                say("committed")
                return True

    stop = Stop()
    config = {
        "bootstrap.servers": address,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": 1_000,
        **(settings or {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}),
    }
    if instance:
        config["group.instance.id"] = instance
    consumer = Consumer(config)
    said, uncommitted = None, []

    def changed(_, parts):
        if not settings:
            assigned(part.partition for part in parts)

    consumer.subscribe([topic], on_assign=changed)
    while not stop.wanted:
        message = consumer.poll(0.1)
        owned = {part.partition for part in consumer.assignment()}
        if settings and said != owned:
            said = owned
            assigned(owned)
        # A commit that a rebalance refused is repeated after it, if the partition was kept: no other member reads its
        # records again.
        uncommitted = [one for one in uncommitted if one.partition() in owned]
        if message is not None and not message.error():
            say("got", message.partition(), message.offset(), message.value().decode())
            uncommitted.append(message)
        uncommitted = [one for one in uncommitted if not commit(one)]
    consumer.close()


def run_confluent_cooperative(address, group, topic, instance):
    timing = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
    run_confluent(
        address, group, topic, instance, **timing, **{"partition.assignment.strategy": "cooperative-sticky"}
    )


def run_confluent_consumer(address, group, topic, instance):
    """Run the consumer group protocol (KIP-848): the broker sets the times and assigns."""
    run_confluent(address, group, topic, instance, **{"group.protocol": "consumer"})


def run_kafka_python_cooperative(address, group, topic, instance):
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

    run_kafka_python(
        address, group, topic, instance, partition_assignment_strategy=[CooperativeStickyAssignor]
    )


def resume_rebalance(consumer):
    """Work around a defect of kafka-python 3.0.12, which FINDINGS.md shows with Apache Kafka too.

    A rebalance for new metadata is not resumed when the leader's `poll` ends between its JoinGroup and the answer to
    its SyncGroup: computing the assignment has already cleared the state that the next `poll` checks.
    """
    if consumer._coordinator._join_task is not None:
        consumer._coordinator.request_rejoin()


def run_kafka_python(address, group, topic, instance, **options):
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.errors import CommitFailedError, RebalanceInProgressError

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked):
            pass

        def on_partitions_assigned(self, parts):
            if not cooperates:
                assigned(part.partition for part in parts)

    stop, cooperates, said, is_committed = Stop(), bool(options), None, True
    if instance:
        options["group_instance_id"] = instance
    consumer = KafkaConsumer(
        bootstrap_servers=address,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        **options,
    )
    consumer.subscribe([topic], listener=Listener())
    while not stop.wanted:
        polled = consumer.poll(timeout_ms=100)
        resume_rebalance(consumer)
        if cooperates and said != (now := {part.partition for part in consumer.assignment()}):
            said = now
            assigned(now)
        for records in polled.values():
            for record in records:
                say("got", record.partition, record.offset, record.value.decode())
            is_committed = False
        if not is_committed:
            try:
                consumer.commit()
            except (CommitFailedError, RebalanceInProgressError):
                continue  # after the rebalance, if the partition was kept
            is_committed = True
            say("committed")
    consumer.close()


def run_aiokafka(address, group, topic, instance):
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.errors import CommitFailedError

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked):
            pass

        def on_partitions_assigned(self, parts):
            assigned(part.partition for part in parts)

    async def main():
        stop = Stop()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            group_instance_id=instance,
        )
        consumer.subscribe([topic], listener=Listener())
        await consumer.start()
        is_committed = True
        while not stop.wanted:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                for record in records:
                    say("got", record.partition, record.offset, record.value.decode())
                is_committed = False
            if not is_committed:
                with contextlib.suppress(CommitFailedError):  # after the rebalance, if the partition was kept
                    await consumer.commit()
                    is_committed = True
                    say("committed")
        await consumer.stop()

    asyncio.run(main())


if __name__ == "__main__":
    client, *arguments = sys.argv[1:]
    arguments += [None] * (4 - len(arguments))
    CLIENTS = {
        "confluent": run_confluent,
        "confluent-cooperative": run_confluent_cooperative,
        "confluent-consumer": run_confluent_consumer,
        "kafka-python": run_kafka_python,
        "kafka-python-cooperative": run_kafka_python_cooperative,
        "aiokafka": run_aiokafka,
    }
    CLIENTS[client](*arguments)
