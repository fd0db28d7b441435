"""Apache Kafka's broker configurations that this server knows by name and does not need.

Users bring them along: in a `server.properties`, in scripts around `kafka-configs`, in tools that read one before they
act. So DescribeConfigs lists all of them, and all may be set, under one of two rules:

- A configuration that cannot be missed (threads, buffers, intervals) is accepted and shown, without effect.
- A configuration that would be missed (security, limits, plugins) may be set to the value that is true here.

A line of the tables is `name TYPE default`. A `*` after the type: Kafka changes it while the broker runs, so it is
dynamic here. No default: not set. Types and defaults are those of Apache Kafka 4.3, except where another value is true
here. Configurations with an effect are in `broker.configs.broker_config`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from headrace.broker.configs.config_key import ConfigKey, ConfigType

_TUNING: Final = """
add.partitions.to.txn.retry.backoff.max.ms INT 100
add.partitions.to.txn.retry.backoff.ms INT 20
background.threads INT* 10
delete.records.purgatory.purge.interval.requests INT 1
fetch.purgatory.purge.interval.requests INT 1000
group.consumer.assignment.interval.ms INT* 1000
group.consumer.max.assignment.interval.ms INT 15000
group.consumer.min.assignment.interval.ms INT 0
group.coordinator.append.linger.ms INT -1
group.coordinator.background.threads INT 2
group.coordinator.cached.buffer.max.bytes INT* 1048588
group.coordinator.threads INT 4
kafka.metrics.polling.interval.secs INT 10
log.cleaner.io.buffer.load.factor DOUBLE* 0.9
log.cleaner.io.buffer.size INT* 524288
log.flush.scheduler.interval.ms LONG 9223372036854775807
log.flush.start.offset.checkpoint.interval.ms INT 60000
max.request.partition.size.limit INT 2000
metrics.num.samples INT 2
metrics.recording.level STRING INFO
metrics.sample.window.ms LONG 30000
num.io.threads INT* 8
num.network.threads INT* 3
num.recovery.threads.per.data.dir INT* 2
offsets.commit.timeout.ms INT 5000
offsets.load.buffer.size INT 5242880
offsets.topic.compression.codec INT 0
offsets.topic.segment.bytes INT 104857600
producer.purgatory.purge.interval.requests INT 1000
queued.max.requests INT 500
request.timeout.ms INT 30000
socket.connection.setup.timeout.max.ms LONG 30000
socket.connection.setup.timeout.ms LONG 10000
telemetry.max.bytes INT 1048576
transaction.abort.timed.out.transaction.cleanup.interval.ms INT 10000
transaction.partition.verification.enable BOOLEAN* true
transaction.state.log.load.buffer.size INT 5242880
transaction.state.log.segment.bytes INT 104857600
"""
_REPLICAS: Final = """
alter.log.dirs.replication.quota.window.num INT 11
alter.log.dirs.replication.quota.window.size.seconds INT 1
log.dir.failure.timeout.ms LONG 30000
num.replica.alter.log.dirs.threads INT
num.replica.fetchers INT* 1
replica.alter.log.dirs.io.max.bytes.per.second LONG* 9223372036854775807
replica.fetch.backoff.ms INT 1000
replica.high.watermark.checkpoint.interval.ms LONG 5000
replica.socket.receive.buffer.bytes INT 65536
replica.socket.timeout.ms INT 30000
replication.quota.window.num INT 11
replication.quota.window.size.seconds INT 1
"""
_CONTROLLERS: Final = """
broker.heartbeat.interval.ms INT 2000
broker.session.timeout.ms INT 9000
controller.listener.names LIST ""
controller.quorum.append.linger.ms INT 25
controller.quorum.auto.join.enable BOOLEAN false
controller.quorum.bootstrap.servers LIST ""
controller.quorum.election.backoff.max.ms INT 1000
controller.quorum.election.timeout.ms INT 1000
controller.quorum.fetch.max.bytes INT 1048576
controller.quorum.fetch.snapshot.max.bytes INT 1048576
controller.quorum.fetch.timeout.ms INT 2000
controller.quorum.request.timeout.ms INT 2000
controller.quorum.retry.backoff.ms INT 20
controller.quorum.voters LIST ""
controller.socket.timeout.ms INT 30000
initial.broker.registration.timeout.ms INT 60000
metadata.log.max.record.bytes.between.snapshots LONG 20971520
metadata.log.max.snapshot.interval.ms LONG 3600000
metadata.log.segment.bytes INT 1073741824
metadata.log.segment.ms LONG 604800000
metadata.max.idle.interval.ms INT 500
metadata.max.retention.bytes LONG 104857600
metadata.max.retention.ms LONG 604800000
process.roles LIST ""
"""
_GROUPS: Final = """
group.share.assignment.interval.ms INT* 1000
group.share.assignors LIST simple
group.share.delivery.count.limit INT 5
group.share.heartbeat.interval.ms INT 5000
group.share.max.assignment.interval.ms INT 15000
group.share.max.delivery.count.limit INT 10
group.share.max.heartbeat.interval.ms INT 15000
group.share.max.partition.max.record.locks INT 4000
group.share.max.record.lock.duration.ms INT 60000
group.share.max.session.timeout.ms INT 60000
group.share.max.share.sessions INT 2000
group.share.max.size INT 200
group.share.min.assignment.interval.ms INT 0
group.share.min.delivery.count.limit INT 2
group.share.min.heartbeat.interval.ms INT 5000
group.share.min.partition.max.record.locks INT 100
group.share.min.record.lock.duration.ms INT 15000
group.share.min.session.timeout.ms INT 45000
group.share.partition.max.record.locks INT 2000
group.share.record.lock.duration.ms INT 30000
group.share.session.timeout.ms INT 45000
group.streams.assignment.interval.ms INT* 1000
group.streams.heartbeat.interval.ms INT 5000
group.streams.initial.rebalance.delay.ms INT 3000
group.streams.max.assignment.interval.ms INT 15000
group.streams.max.heartbeat.interval.ms INT 15000
group.streams.max.session.timeout.ms INT 60000
group.streams.max.size INT 2147483647
group.streams.max.standby.replicas INT 2
group.streams.min.assignment.interval.ms INT 0
group.streams.min.heartbeat.interval.ms INT 5000
group.streams.min.session.timeout.ms INT 45000
group.streams.num.standby.replicas INT 0
group.streams.session.timeout.ms INT 45000
share.coordinator.append.linger.ms INT -1
share.coordinator.cached.buffer.max.bytes INT* 1048588
share.coordinator.load.buffer.size INT 5242880
share.coordinator.snapshot.update.records.per.snapshot INT 500
share.coordinator.state.topic.compression.codec INT 0
share.coordinator.state.topic.num.partitions INT 50
share.coordinator.state.topic.segment.bytes INT 104857600
share.coordinator.threads INT 1
share.coordinator.write.timeout.ms INT 5000
share.fetch.purgatory.purge.interval.requests INT 1000
"""
_REMOTE: Final = """
follower.fetch.last.tiered.offset.enable BOOLEAN* false
remote.list.offsets.request.timeout.ms LONG* 30000
remote.log.index.file.cache.total.size.bytes LONG* 1073741824
remote.log.manager.copier.thread.pool.size INT* 10
remote.log.manager.expiration.thread.pool.size INT* 10
remote.log.manager.follower.thread.pool.size INT* 2
remote.log.manager.thread.pool.size INT 2
remote.log.metadata.custom.metadata.max.bytes INT 128
remote.log.metadata.manager.class.name STRING
remote.log.metadata.manager.class.path STRING
remote.log.metadata.manager.impl.prefix STRING rlmm.config.
remote.log.metadata.manager.listener.name STRING
remote.log.reader.max.pending.tasks INT 100
remote.log.storage.manager.class.name STRING
remote.log.storage.manager.class.path STRING
remote.log.storage.manager.impl.prefix STRING rsm.config.
"""
_LOGIN: Final = """
sasl.client.callback.handler.class CLASS
sasl.login.callback.handler.class CLASS
sasl.login.class CLASS
sasl.login.connect.timeout.ms INT
sasl.login.read.timeout.ms INT
sasl.login.refresh.buffer.seconds SHORT* 300
sasl.login.refresh.min.period.seconds SHORT* 60
sasl.login.refresh.window.factor DOUBLE* 0.8
sasl.login.refresh.window.jitter DOUBLE* 0.05
sasl.login.retry.backoff.max.ms LONG 10000
sasl.login.retry.backoff.ms LONG 100
sasl.mechanism.controller.protocol STRING GSSAPI
sasl.oauthbearer.assertion.algorithm STRING RS256
sasl.oauthbearer.assertion.claim.aud STRING
sasl.oauthbearer.assertion.claim.exp.seconds INT 300
sasl.oauthbearer.assertion.claim.iss STRING
sasl.oauthbearer.assertion.claim.jti.include BOOLEAN false
sasl.oauthbearer.assertion.claim.nbf.seconds INT 60
sasl.oauthbearer.assertion.claim.sub STRING
sasl.oauthbearer.assertion.file STRING
sasl.oauthbearer.assertion.private.key.file STRING
sasl.oauthbearer.assertion.private.key.passphrase PASSWORD
sasl.oauthbearer.assertion.template.file STRING
sasl.oauthbearer.jwt.retriever.class CLASS
"""
_SECURITY: Final = """
early.start.listeners LIST
principal.builder.class CLASS*
sasl.jaas.config PASSWORD*
sasl.kerberos.kinit.cmd STRING* /usr/bin/kinit
sasl.kerberos.min.time.before.relogin LONG* 60000
sasl.kerberos.principal.to.local.rules LIST* DEFAULT
sasl.kerberos.service.name STRING*
sasl.kerberos.ticket.renew.jitter DOUBLE* 0.05
sasl.kerberos.ticket.renew.window.factor DOUBLE* 0.8
sasl.oauthbearer.jwt.validator.class CLASS
sasl.server.callback.handler.class CLASS
security.providers STRING
ssl.engine.factory.class CLASS*
"""
_PLUGINS: Final = """
alter.config.policy.class.name CLASS
client.quota.callback.class CLASS
config.providers LIST* ""
create.topic.policy.class.name CLASS
kafka.metrics.reporters LIST ""
metric.reporters LIST* ""
"""
_MISSED: Final = """
cordoned.log.dirs LIST* ""
metadata.log.dir STRING
queued.max.request.bytes LONG -1
transaction.two.phase.commit.enable BOOLEAN false
"""

_DOCS: Final = {
    _TUNING: "No effect here: one event loop and a few threads serve everything.",
    _REPLICAS: "No effect here: replication has no such limits, threads or intervals.",
    _CONTROLLERS: "No effect here: there are no separate controllers; the brokers keep the metadata.",
    _GROUPS: "No effect here: there are no share groups and no streams groups.",
    _LOGIN: "No effect here: this broker authenticates itself only to the other brokers of its cluster.",
    _REMOTE: (
        "No effect here: remote storage needs no plugin, no topic of its own and no thread pool for each "
        "kind of work."
    ),
}
_NOT_OFFERED: Final = {
    _SECURITY: "Not offered: Kerberos and Java classes are not supported.",
    _PLUGINS: "Not offered: Java classes cannot be plugged in.",
    _MISSED: "Not offered: no other value has an effect here.",
}


def _only(default: Any, reason: str, value: Any) -> str | None:
    return None if value == default else f"{reason} Leave it at {_text(default)}"


def _text(value: Any) -> str:
    if value is None:
        return "its default (not set)"
    return repr(",".join(value)) if isinstance(value, list) else str(value).lower()


def _elsewhere(option: str, value: Any) -> str:
    return f"set it with {option} on the command line"


def _read(table: str, doc: str, reason: str | None) -> Iterator[ConfigKey]:
    for line in table.split("\n")[1:-1]:
        name, kind, *rest = line.split(" ", 2)
        default = rest[0].strip('"') if rest else None
        key = ConfigKey(name, ConfigType[kind.rstrip("*")], default, doc, dynamic=kind.endswith("*"))
        if reason is not None:
            check: Callable[[Any], str | None] = partial(_only, key.default_value, reason)
            key = ConfigKey(key.name, key.type, default, doc, check, dynamic=key.dynamic)
        yield key


_NO_SHARES: Final = "Not offered: there are no share groups."

KAFKA_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    *(key for table, doc in _DOCS.items() for key in _read(table, doc, None)),
    *(key for table, doc in _NOT_OFFERED.items() for key in _read(table, doc, doc)),
    *(
        ConfigKey(name, kind, "1", _NO_SHARES, partial(_only, 1, _NO_SHARES))
        for name, kind in (
            ("share.coordinator.state.topic.replication.factor", ConfigType.SHORT),
            ("share.coordinator.state.topic.min.isr", ConfigType.SHORT),
        )
    ),
    ConfigKey(
        "group.coordinator.rebalance.protocols",
        ConfigType.LIST,
        "classic,consumer",
        "Group protocols that the broker offers.",
        partial(_only, ["classic", "consumer"], "Exactly these protocols are served."),
    ),
    *(
        ConfigKey(
            name,
            kind,
            None,
            "Data directory; set it with --data on the command line.",
            partial(_elsewhere, "--data"),
        )
        for name, kind in (("log.dirs", ConfigType.LIST), ("log.dir", ConfigType.LIST))
    ),
    ConfigKey(
        "broker.id",
        ConfigType.INT,
        None,
        "Id of this broker. Old name of node.id.",
        partial(_elsewhere, "node.id, as a configuration or"),
    ),
)

DISPENSABLE: Final = frozenset(
    {
        *(line.split(" ", 1)[0] for line in _MISSED.split("\n")[1:-1]),
        *("broker.id", "group.coordinator.rebalance.protocols", "log.dir", "log.dirs"),
        *("kafka.metrics.reporters", "metric.reporters", "replica.selector.class"),
        *("share.coordinator.state.topic.min.isr", "share.coordinator.state.topic.replication.factor"),
    }
)
"""Configurations that a file of Kafka's may set to any value: they are left out and reported. Restrictions are not
among them: without them the server would be more open than its file says.
"""
WITHOUT_EFFECT: Final = frozenset(key.name for table, doc in _DOCS.items() for key in _read(table, doc, None))
"""Configurations that are accepted and shown, without effect."""
