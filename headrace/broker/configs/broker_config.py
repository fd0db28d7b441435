"""The broker's configuration: one declared table under Kafka's names, and a reader for it.

Configurations that have an effect are declared here. `broker.configs.kafka` has the other ones of Apache Kafka, and why
they have no effect. A name that neither declares is refused instead of ignored. A `dynamic` configuration may be
changed while the broker runs (by `broker.metadata.broker_configs`), so it is read where it is used; the others are
fixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from headrace.broker.configs.authorization import AUTHORIZATION_CONFIGS
from headrace.broker.configs.config_key import (
    ConfigError,
    ConfigKey,
    ConfigType,
    at_least,
    between,
    nearest_name,
    unknown_name,
)
from headrace.broker.configs.connections import CONNECTION_CONFIGS, check_together
from headrace.broker.configs.kafka import DISPENSABLE, KAFKA_CONFIGS, WITHOUT_EFFECT
from headrace.broker.configs.listeners import (
    LISTENER_CONFIGS,
    Listener,
    listener_prefix,
    listeners_of,
    without_listener,
)
from headrace.broker.configs.metrics import METRICS_CONFIGS
from headrace.broker.configs.quotas import QUOTA_CONFIGS
from headrace.broker.configs.remote_log import REMOTE_CONFIGS
from headrace.broker.configs.replication import REPLICATION_CONFIGS
from headrace.broker.configs.sasl import SASL_CONFIGS
from headrace.broker.configs.tls import TLS_CONFIGS
from headrace.broker.configs.topics import PRODUCER_ID_EXPIRATION_MS, TOPIC_CONFIGS
from headrace.broker.configs.zookeeper import ZOOKEEPER_CONFIGS
from headrace.protocol.security.properties import PropertiesError, read_properties

_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)


def _check_assignors(names: list[str]) -> str | None:
    return None if names and len(set(names)) == len(names) else "it must name each assignor once"


_ANYWHERE: Final = ("", 0)
_TOPIC_SYNONYMS = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.type": "compression.type",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.zstd.level": "compression.zstd.level",
    "durability": "log.durability",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
"""Topic configurations, and the broker configuration that gives each its default if there is only one."""

_TIMES = {
    "retention.ms": (
        ("log.retention.ms", 1),
        ("log.retention.minutes", 60_000),
        ("log.retention.hours", 3_600_000),
    ),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", 3_600_000)),
    "segment.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", 3_600_000)),
    "flush.ms": (("log.flush.interval.ms", 1),),
}
"""Topic configurations whose default several configurations can give, as (name, milliseconds per unit). The first one
that is set counts.
"""


def _topic_defaults() -> Iterator[ConfigKey]:
    """Yield the broker's defaults of topic configurations, from the declarations in `topics`."""
    for topic_config, name in _TOPIC_SYNONYMS.items():
        yield replace(TOPIC_CONFIGS[topic_config], name=name, dynamic=True)


BROKER_CONFIGS: tuple[ConfigKey, ...] = (
    # identity and listeners
    ConfigKey("node.id", _INT, "0", "Id of this broker.", at_least(0)),
    *LISTENER_CONFIGS,
    *REPLICATION_CONFIGS,
    *TLS_CONFIGS,
    ConfigKey("broker.rack", _STRING, None, "Rack of this broker, as clients see it."),
    # the cluster
    *ZOOKEEPER_CONFIGS,
    # security
    *AUTHORIZATION_CONFIGS,
    *QUOTA_CONFIGS,
    *SASL_CONFIGS,
    *METRICS_CONFIGS,
    # topics
    ConfigKey(
        "num.partitions",
        _INT,
        "1",
        "Number of partitions of a topic that is created without one.",
        at_least(1),
    ),
    ConfigKey(
        "auto.create.topics.enable", _BOOLEAN, "true", "Create an unknown topic when a client asks for it."
    ),
    ConfigKey("delete.topic.enable", _BOOLEAN, "true", "Let clients delete topics."),
    # logs: defaults of the topic configurations
    ConfigKey(
        "log.retention.ms",
        _LONG,
        None,
        "Time that records are kept, in milliseconds; -1: for ever. It takes precedence over "
        "log.retention.minutes and log.retention.hours.",
        dynamic=True,
    ),
    ConfigKey(
        "log.retention.minutes",
        _INT,
        None,
        "Time that records are kept, in minutes. It takes precedence over log.retention.hours.",
    ),
    ConfigKey("log.retention.hours", _INT, "168", "Time that records are kept, in hours."),
    ConfigKey(
        "log.roll.ms",
        _LONG,
        None,
        "Age at which a segment is closed, in milliseconds. It takes precedence over log.roll.hours.",
        dynamic=True,
    ),
    ConfigKey("log.roll.hours", _INT, "168", "Age at which a segment is closed, in hours.", at_least(1)),
    ConfigKey(
        "log.roll.jitter.ms",
        _LONG,
        None,
        "Maximum random time that is subtracted from log.roll.ms, in milliseconds. It takes precedence over "
        "log.roll.jitter.hours.",
        at_least(0),
        dynamic=True,
    ),
    ConfigKey(
        "log.roll.jitter.hours",
        _INT,
        "0",
        "Maximum random time that is subtracted from log.roll.hours, in hours.",
        at_least(0),
    ),
    ConfigKey(
        "log.flush.interval.ms",
        _LONG,
        None,
        "Longest time between two fsyncs of a partition, in milliseconds.",
        at_least(0),
        dynamic=True,
    ),
    *_topic_defaults(),
    # configurations that Kafka does not have
    ConfigKey(
        "log.strict.records",
        _BOOLEAN,
        "true",
        "Check the records of every batch before it is appended, as Apache Kafka does; if false, check its "
        "header only. The check costs 4 us and 0.1 ms per MB. Compressed batches are decompressed for it, "
        "which doubles their CPU time.",
    ),
    # remote storage (KIP-405)
    *REMOTE_CONFIGS,
    # compaction
    ConfigKey("log.cleaner.enable", _BOOLEAN, "true", "Compact the topics whose cleanup.policy asks for it."),
    ConfigKey(
        "log.cleaner.threads",
        _INT,
        "1",
        "Number of partitions that are compacted at a time.",
        between(1, 1),
        dynamic=True,
    ),
    ConfigKey(
        "log.cleaner.dedupe.buffer.size",
        _LONG,
        "134217728",
        "Maximum memory for the keys of one compaction, in bytes; each key needs 32 bytes.",
        at_least(65536),
        dynamic=True,
    ),
    ConfigKey(
        "log.cleaner.io.max.bytes.per.second",
        _DOUBLE,
        "1.7976931348623157E308",
        "Maximum number of bytes that compaction reads and writes in a second.",
        at_least(1),
        dynamic=True,
    ),
    ConfigKey(
        "log.cleaner.backoff.ms",
        _LONG,
        "15000",
        "Interval between searches for logs to compact, in milliseconds.",
        at_least(1),
        dynamic=True,
    ),
    # background work
    ConfigKey(
        "log.retention.check.interval.ms",
        _LONG,
        "300000",
        "Interval between searches for segments that retention deletes, in milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "log.initial.task.delay.ms",
        _LONG,
        "30000",
        "Time from the start of the broker to the first retention check, in milliseconds.",
        at_least(0),
    ),
    ConfigKey(
        "log.flush.offset.checkpoint.interval.ms",
        _INT,
        "60000",
        "Interval between flushes of the logs, in milliseconds. It bounds how much is scanned after a crash.",
        at_least(1),
    ),
    # sockets
    ConfigKey(
        "socket.request.max.bytes",
        _INT,
        "104857600",
        "Maximum size of a request, in bytes; a larger one closes the connection.",
        at_least(1),
    ),
    ConfigKey(
        "socket.send.buffer.bytes",
        _INT,
        "-1",
        "Send buffer of connections (SO_SNDBUF), in bytes; -1: the system's default.",
        at_least(-1),
    ),
    ConfigKey(
        "socket.receive.buffer.bytes",
        _INT,
        "-1",
        "Receive buffer of connections (SO_RCVBUF), in bytes; -1: the system's default.",
        at_least(-1),
    ),
    ConfigKey(
        "socket.listen.backlog.size",
        _INT,
        "50",
        "Maximum number of connections that wait to be accepted.",
        at_least(1),
    ),
    ConfigKey(
        "connections.max.idle.ms",
        _LONG,
        "600000",
        "Time after which a silent connection is closed, in milliseconds.",
        at_least(1),
    ),
    *CONNECTION_CONFIGS,
    ConfigKey(
        "sasl.server.max.receive.size",
        _INT,
        "524288",
        "Maximum size of a request before the connection is authenticated, in bytes; a larger one closes "
        "the connection.",
        at_least(1),
    ),
    ConfigKey(
        "fetch.max.bytes",
        _INT,
        "57671680",
        "Maximum size of the answer to one fetch, in bytes.",
        at_least(1024),
    ),
    ConfigKey(
        "max.incremental.fetch.session.cache.slots",
        _INT,
        "1000",
        "Maximum number of consumers with a fetch session, whose partitions the broker remembers; other "
        "consumers send theirs with each fetch.",
        at_least(0),
    ),
    # consumer groups
    ConfigKey(
        "group.initial.rebalance.delay.ms",
        _INT,
        "3000",
        "Time that a new group waits for more members before its first rebalance, in milliseconds.",
        at_least(0),
    ),
    ConfigKey(
        "group.min.session.timeout.ms",
        _INT,
        "6000",
        "Shortest session timeout that a member of a classic group may ask for, in milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "group.max.session.timeout.ms",
        _INT,
        "1800000",
        "Longest session timeout that a member of a classic group may ask for, in milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "group.max.size", _INT, "2147483647", "Maximum number of members of a classic group.", at_least(1)
    ),
    ConfigKey(
        "group.consumer.session.timeout.ms",
        _INT,
        "45000",
        "Session timeout of members of the consumer protocol (KIP-848), in milliseconds, unless their group "
        "sets its own.",
        at_least(1),
    ),
    ConfigKey(
        "group.consumer.min.session.timeout.ms",
        _INT,
        "45000",
        "Shortest session timeout that a group of the consumer protocol may set, in milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "group.consumer.max.session.timeout.ms",
        _INT,
        "60000",
        "Longest session timeout that a group of the consumer protocol may set, in milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "group.consumer.heartbeat.interval.ms",
        _INT,
        "5000",
        "Interval between heartbeats of members of the consumer protocol, in milliseconds, unless their "
        "group sets its own.",
        at_least(1),
    ),
    ConfigKey(
        "group.consumer.min.heartbeat.interval.ms",
        _INT,
        "5000",
        "Shortest heartbeat interval that a group of the consumer protocol may set, in milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "group.consumer.max.heartbeat.interval.ms",
        _INT,
        "15000",
        "Longest heartbeat interval that a group of the consumer protocol may set, in milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "group.consumer.max.size",
        _INT,
        "2147483647",
        "Maximum number of members of a group of the consumer protocol.",
        at_least(1),
    ),
    ConfigKey(
        "group.consumer.assignors",
        _LIST,
        "uniform,range",
        "Assignors that members of the consumer protocol may ask for; the first one is the default.",
        _check_assignors,
        ("uniform", "range"),
    ),
    ConfigKey(
        "group.consumer.migration.policy",
        _STRING,
        "bidirectional",
        "Whether a group with members may change its protocol: `upgrade` when a member of the consumer "
        "protocol joins a classic group, `downgrade` when the last such member leaves. An empty group may "
        "always change it.",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
    ),
    ConfigKey(
        "offsets.retention.minutes",
        _INT,
        "10080",
        "Time that the offsets of an empty group are kept, in minutes.",
        at_least(1),
    ),
    ConfigKey(
        "offsets.retention.check.interval.ms",
        _LONG,
        "600000",
        "Interval between searches for expired offsets, in milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "offsets.topic.num.partitions",
        _INT,
        "8",
        "Number of partitions of __consumer_offsets, fixed at its creation.",
        between(1, 1000),
    ),
    ConfigKey(
        "producer.id.expiration.ms",
        _INT,
        str(PRODUCER_ID_EXPIRATION_MS),
        "Time after which a partition forgets a producer that sends nothing and has no open transaction, in "
        "milliseconds.",
        at_least(1),
        dynamic=True,
    ),
    ConfigKey(
        "transaction.max.timeout.ms",
        _INT,
        "900000",
        "Longest timeout that a transaction may ask for, in milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "transactional.id.expiration.ms",
        _INT,
        "604800000",
        "Time after which an unused transactional id is forgotten, in milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _INT,
        "3600000",
        "Interval between searches for unused transactional ids, in milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "transaction.state.log.num.partitions",
        _INT,
        "8",
        "Number of partitions of __transaction_state, fixed at its creation.",
        between(1, 1000),
    ),
    ConfigKey(
        "offset.metadata.max.bytes",
        _INT,
        "4096",
        "Maximum size of the metadata text of a committed offset, in bytes.",
        at_least(0),
    ),
)


_GROUP_TIMES: Final = (
    # (name, minimum, maximum), as Kafka's GroupCoordinatorConfig checks them at the start
    ("group.max.session.timeout.ms", "group.min.session.timeout.ms", None),
    *(
        (f"group.consumer.{kind}", f"group.consumer.min.{kind}", f"group.consumer.max.{kind}")
        for kind in ("heartbeat.interval.ms", "session.timeout.ms")
    ),
    *(
        (f"group.consumer.max.{kind}", f"group.consumer.min.{kind}", None)
        for kind in ("heartbeat.interval.ms", "session.timeout.ms")
    ),
)


def _check_group_times(values: Mapping[str, Any]) -> None:
    """Check that the times of groups are within the bounds that the broker sets for groups. Raises ConfigError."""
    for name, least, most in _GROUP_TIMES:
        if values[name] < values[least]:
            raise ConfigError(
                f"{name} must be greater than or equal to {least}; they are {values[name]} and {values[least]}"
            )
        if most is not None and values[name] > values[most]:
            raise ConfigError(
                f"{name} must be less than or equal to {most}; they are {values[name]} and {values[most]}"
            )
    session, heartbeat = "group.consumer.session.timeout.ms", "group.consumer.heartbeat.interval.ms"
    if values[session] <= values[heartbeat]:
        raise ConfigError(
            f"{session} must be greater than {heartbeat}; they are {values[session]} and {values[heartbeat]}"
        )


# ConfigSource of DescribeConfigs: set for this broker or for all brokers while running, set at the start, default.
BROKER_SOURCE, ALL_BROKERS_SOURCE, STATIC_SOURCE, DEFAULT_SOURCE = 2, 3, 4, 5


class TopicLayer(NamedTuple):
    """A default that a broker configuration sets for a topic configuration: `topic_text` is its `text` in the topic's
    unit.
    """

    name: str
    text: str
    source: int
    topic_text: str


class BrokerConfig:
    """Parsed values by name: `config["num.partitions"]` is an int, a bool, a str or a list by the declared type.

    `explicit` is the mapping of all values that are set, from any source: see `layers`.
    """

    def __init__(
        self, explicit: Mapping[str, str] | None = None, extra_keys: Iterable[ConfigKey] = ()
    ) -> None:
        """Raises ConfigError for an unknown name or an illegal value. `extra_keys` are those of extensions.

        A key whose name ends in `*` declares every name with that prefix; those that are set are in `keys`.
        """
        declared = {key.name: key for key in (*BROKER_CONFIGS, *KAFKA_CONFIGS, *extra_keys)}
        self.keys: dict[str, ConfigKey] = {n: key for n, key in declared.items() if not n.endswith("*")}
        self._defaults = {name: key.default_value for name, key in self.keys.items()}
        self._families = [key for name, key in declared.items() if name.endswith("*")]
        self._static = dict(explicit or {})
        self._facts: dict[str, str] = {}
        self.unused: tuple[str, ...] = ()
        """Names that the file sets and that have no effect here, each with the reason; see `load`."""
        self.set_dynamic({}, {})

    def tell(self, facts: Mapping[str, str]) -> None:
        """Add facts that the start has decided, such as the listening addresses. They are shown as if they had been set
        then.
        """
        self._facts.update(facts)

    def set_dynamic(self, all_brokers: Mapping[str, str], broker: Mapping[str, str]) -> None:
        """Replace the values that were set while the broker runs, for all brokers and for this one. Raises
        ConfigError.
        """
        values: dict[str, Any] = dict(self._defaults)
        explicit = {**self._static, **all_brokers, **broker}
        for name, text in explicit.items():
            key = self.keys.get(name)
            if key is None:
                key = self.key(name)
                if key is None:
                    raise self.unknown(name)
                # A copy has families of its own.
                self.keys = {**self.keys, name: key}
                self._defaults = {**self._defaults, name: key.default_value}
            values[name] = key.parse(text)
        _check_group_times(values)
        check_together(values)
        listeners_of(values, explicit, _ANYWHERE)
        self.explicit = explicit
        self._values = values
        self._dynamic = ((BROKER_SOURCE, dict(broker)), (ALL_BROKERS_SOURCE, dict(all_brokers)))

    def key(self, name: str) -> ConfigKey | None:
        """Return the declaration of a configuration: by its name, by its family, or as one for a single listener."""
        declared = self.keys.get(name)
        if declared is not None:
            return declared
        family = next((key for key in self._families if name.startswith(key.name[:-1])), None)
        if family is not None:
            return family.named(name)
        for_all = without_listener(name)
        key = None if for_all is None else self.key(for_all)
        return None if key is None else replace(key, name=name, default=None)

    def unknown(self, name: str) -> ConfigError:
        """Return the error for an undeclared configuration, with the nearest known name."""
        for_all = without_listener(name)
        prefix = "" if for_all is None else name[: -len(for_all)]
        return unknown_name("broker", name, [prefix + known for known in self.keys])

    def of_listener(self, listener: str, name: str) -> Any:
        """Return the value that counts for a listener: its own one, otherwise the one for all listeners."""
        own = listener_prefix(listener) + name
        return self._values[own] if own in self.explicit else self._values[name]

    def is_set_for(self, listener: str, name: str) -> bool:
        """Return whether the configuration is set for this listener alone."""
        return listener_prefix(listener) + name in self.explicit

    def listeners(self, listen: tuple[str, int]) -> tuple[Listener, ...]:
        """Return the listeners in their order. `listen` is the address of the only one if none is configured."""
        return listeners_of(self._values, self.explicit, listen)

    def with_dynamic(self, all_brokers: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        """Return this configuration as `set_dynamic` would make it. Raises ConfigError."""
        changed = copy(self)
        changed.set_dynamic(all_brokers, broker)
        return changed

    def layers(self, name: str) -> list[tuple[str | None, int]]:
        """Return where the value of a configuration may come from, as (text, source); the first one counts."""
        if name in self._facts:
            return [(self._facts[name], STATIC_SOURCE), (self.keys[name].default, DEFAULT_SOURCE)]
        found: list[tuple[str | None, int]] = [
            (texts[name], source)
            for source, texts in (*self._dynamic, (STATIC_SOURCE, self._static))
            if name in texts
        ]
        return [*found, (self.keys[name].default, DEFAULT_SOURCE)]

    @classmethod
    def load(
        cls,
        sets: Mapping[str, str] | None = None,
        file: Path | None = None,
        extra_keys: Iterable[ConfigKey] = (),
    ) -> BrokerConfig:
        """Return the configuration of a file (`.toml`, otherwise Java properties) with `sets` on top.

        Kafka's own files, which are properties, are accepted whole: names without an effect here are left out and
        listed in `unused`. All faults of a file are reported in one ConfigError. A setting that the server must not be
        without, such as an authorizer that is not offered, is one of these faults.
        """
        extra_keys = tuple(extra_keys)
        if file is None:
            return cls(sets, extra_keys)
        found = dict(read_config_file(file))
        known = cls({}, extra_keys)
        if found.get("broker.id", "-1") != "-1" and "node.id" not in {*found, *(sets or {})}:
            found["node.id"] = found.pop("broker.id")
        unused: dict[str, str] = {}
        wrong: list[str] = []
        for name, text in found.items():
            if name in (sets or {}):
                continue
            key = known.key(name)
            if key is None and file.suffix != ".toml":
                near = nearest_name(name, known.keys)
                unused[name] = "not a configuration of a broker" + (
                    f"; did you mean {near!r}?" if near else ""
                )
            elif key is None:
                wrong.append(str(known.unknown(name)))
            else:
                try:
                    key.parse(text)
                except ConfigError as error:
                    if name in DISPENSABLE:
                        unused[name] = key.doc.rstrip(".")
                    else:
                        wrong.append(str(error))
        if wrong:
            raise ConfigError("\n".join(wrong if len(wrong) == 1 else [f"{file} cannot be used:", *wrong]))
        config = cls(
            {**{n: text for n, text in found.items() if n not in unused}, **(sets or {})}, extra_keys
        )
        unused |= {
            n: known.keys[n].doc.rstrip(".") for n in found if n in WITHOUT_EFFECT and n not in (sets or {})
        }
        config.unused = tuple(f"{name}: {unused[name]}" for name in found if name in unused)
        return config

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    @staticmethod
    def topic_synonym(topic_config: str) -> str:
        """Return the broker configuration that gives a topic configuration its default; the name itself if there is
        none.
        """
        if topic_config in _TIMES:
            return _TIMES[topic_config][0][0]
        return _TOPIC_SYNONYMS.get(topic_config, topic_config)

    def topic_defaults(self) -> dict[str, str]:
        """Return the topic configurations that this configuration sets explicitly, as text."""
        return {
            topic: layer.topic_text
            for topic in (*_TOPIC_SYNONYMS, *_TIMES)
            for layer in self.topic_layers(topic)[:1]
        }

    def topic_layers(self, topic_config: str) -> list[TopicLayer]:
        """Return the defaults that this configuration sets for a topic configuration; the first one counts."""
        if topic_config in _TOPIC_SYNONYMS:
            name = _TOPIC_SYNONYMS[topic_config]
            return [TopicLayer(name, text, source, text) for text, source in _set_only(self.layers(name))]
        found = []
        for name, factor in _TIMES.get(topic_config, ()):
            for text, source in _set_only(self.layers(name)):
                value = int(text)
                found.append(TopicLayer(name, text, source, str(value * factor if value >= 0 else -1)))
        return found


def _set_only(layers: list[tuple[str | None, int]]) -> list[tuple[str, int]]:
    return [(text, source) for text, source in layers if source != DEFAULT_SOURCE and text is not None]


def read_config_file(path: Path) -> dict[str, str]:
    """Read names and values of a configuration file, as text. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error}") from error
    if path.suffix == ".toml":
        return _read_toml(path, text)
    try:
        return read_properties(text)
    except PropertiesError as error:
        raise ConfigError(f"{path}, {error}") from None


def _read_toml(path: Path, text: str) -> dict[str, str]:
    import tomllib

    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error
    values: dict[str, str] = {}

    def walk(prefix: str, node: Mapping[str, Any]) -> None:
        # `num.partitions = 3` is a nested table in TOML; a quoted name is not. Both mean the same here.
        for name, value in node.items():
            if isinstance(value, dict):
                walk(f"{prefix}{name}.", value)
            elif isinstance(value, bool):
                values[prefix + name] = str(value).lower()
            elif isinstance(value, list):
                values[prefix + name] = ",".join(map(str, value))
            else:
                values[prefix + name] = str(value)

    walk("", tree)
    return values
