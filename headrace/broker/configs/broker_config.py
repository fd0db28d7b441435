"""The broker's configuration: one declared table under Kafka's names, and a reader for it.

What has an effect is declared here; what Apache Kafka has beside that is in `broker.configs.kafka`, with why it has
none. A name of neither is refused instead of ignored. What is declared `dynamic` may be changed while the broker runs
(`broker.metadata.broker_configs` does that), so it is read where it is used; the rest is fixed.
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
"""Topic configurations and the broker configuration that gives each its default, where it is one value."""

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
"""Those that several configurations can give, the first that is set counts: (name, milliseconds per unit)."""


def _topic_defaults() -> Iterator[ConfigKey]:
    """What is a default for topics is declared once, there."""
    for topic_config, name in _TOPIC_SYNONYMS.items():
        yield replace(TOPIC_CONFIGS[topic_config], name=name, dynamic=True)


BROKER_CONFIGS: tuple[ConfigKey, ...] = (
    # identity and listeners
    ConfigKey("node.id", _INT, "0", "The id of this broker.", at_least(0)),
    *LISTENER_CONFIGS,
    *REPLICATION_CONFIGS,
    *TLS_CONFIGS,
    ConfigKey("broker.rack", _STRING, None, "The rack of this broker, as clients are told."),
    # the cluster
    *ZOOKEEPER_CONFIGS,
    # security
    *AUTHORIZATION_CONFIGS,
    *QUOTA_CONFIGS,
    *SASL_CONFIGS,
    *METRICS_CONFIGS,
    # topics
    ConfigKey("num.partitions", _INT, "1", "Partitions of a topic created without a number.", at_least(1)),
    ConfigKey(
        "auto.create.topics.enable", _BOOLEAN, "true", "Create an unknown topic when a client asks for it."
    ),
    ConfigKey("delete.topic.enable", _BOOLEAN, "true", "Let clients delete topics."),
    # logs: defaults of the topic configurations
    ConfigKey(
        "log.retention.ms",
        _LONG,
        None,
        "How long records are kept; -1 for ever. Wins over minutes, hours.",
        dynamic=True,
    ),
    ConfigKey("log.retention.minutes", _INT, None, "The same in minutes; wins over hours."),
    ConfigKey("log.retention.hours", _INT, "168", "The same in hours."),
    ConfigKey("log.roll.ms", _LONG, None, "Age at which a segment is closed. Wins over hours.", dynamic=True),
    ConfigKey("log.roll.hours", _INT, "168", "The same in hours.", at_least(1)),
    ConfigKey(
        "log.roll.jitter.ms",
        _LONG,
        None,
        "At most so much is taken off it. Wins over hours.",
        at_least(0),
        dynamic=True,
    ),
    ConfigKey("log.roll.jitter.hours", _INT, "0", "The same in hours.", at_least(0)),
    ConfigKey(
        "log.flush.interval.ms",
        _LONG,
        None,
        "fsync a partition at least this often.",
        at_least(0),
        dynamic=True,
    ),
    *_topic_defaults(),
    # what this broker has and Kafka has not
    ConfigKey(
        "log.strict.records",
        _BOOLEAN,
        "true",
        "Check the records of every batch before it is appended, as Apache Kafka does; otherwise its header only. "
        "Costs 4 us and 0.1 ms per MB; of compressed batches decompression, which doubles their CPU time.",
    ),
    # remote storage (KIP-405)
    *REMOTE_CONFIGS,
    # compaction
    ConfigKey("log.cleaner.enable", _BOOLEAN, "true", "Compact the topics that ask for it."),
    ConfigKey(
        "log.cleaner.threads", _INT, "1", "Partitions compacted at a time.", between(1, 1), dynamic=True
    ),
    ConfigKey(
        "log.cleaner.dedupe.buffer.size",
        _LONG,
        "134217728",
        "Most memory for the keys of one compaction; each needs 32 bytes.",
        at_least(65536),
        dynamic=True,
    ),
    ConfigKey(
        "log.cleaner.io.max.bytes.per.second",
        _DOUBLE,
        "1.7976931348623157E308",
        "Most bytes that compaction reads and writes in a second.",
        at_least(1),
        dynamic=True,
    ),
    ConfigKey(
        "log.cleaner.backoff.ms",
        _LONG,
        "15000",
        "How often is looked for something to compact.",
        at_least(1),
        dynamic=True,
    ),
    # background work
    ConfigKey(
        "log.retention.check.interval.ms",
        _LONG,
        "300000",
        "How often old segments are looked for.",
        at_least(1),
    ),
    ConfigKey(
        "log.initial.task.delay.ms",
        _LONG,
        "30000",
        "How long after the start the first check comes.",
        at_least(0),
    ),
    ConfigKey(
        "log.flush.offset.checkpoint.interval.ms",
        _INT,
        "60000",
        "How often logs are flushed, which bounds what is scanned after a crash.",
        at_least(1),
    ),
    # sockets
    ConfigKey(
        "socket.request.max.bytes",
        _INT,
        "104857600",
        "Largest request; a larger one closes the connection.",
        at_least(1),
    ),
    ConfigKey(
        "socket.send.buffer.bytes",
        _INT,
        "-1",
        "SO_SNDBUF of connections; -1 for the system's.",
        at_least(-1),
    ),
    ConfigKey(
        "socket.receive.buffer.bytes",
        _INT,
        "-1",
        "SO_RCVBUF of connections; -1 for the system's.",
        at_least(-1),
    ),
    ConfigKey("socket.listen.backlog.size", _INT, "50", "Connections waiting to be accepted.", at_least(1)),
    ConfigKey(
        "connections.max.idle.ms", _LONG, "600000", "A connection silent for so long is closed.", at_least(1)
    ),
    *CONNECTION_CONFIGS,
    ConfigKey(
        "sasl.server.max.receive.size",
        _INT,
        "524288",
        "Largest request before a connection is authenticated; a larger one closes it.",
        at_least(1),
    ),
    ConfigKey("fetch.max.bytes", _INT, "57671680", "Largest answer to one fetch.", at_least(1024)),
    ConfigKey(
        "max.incremental.fetch.session.cache.slots",
        _INT,
        "1000",
        "Consumers of which the broker remembers what they fetch; others send it each time.",
        at_least(0),
    ),
    # consumer groups
    ConfigKey(
        "group.initial.rebalance.delay.ms",
        _INT,
        "3000",
        "How long a new group waits for more members before its first rebalance.",
        at_least(0),
    ),
    ConfigKey(
        "group.min.session.timeout.ms", _INT, "6000", "Shortest session timeout of members.", at_least(1)
    ),
    ConfigKey(
        "group.max.session.timeout.ms", _INT, "1800000", "Longest session timeout of members.", at_least(1)
    ),
    ConfigKey("group.max.size", _INT, "2147483647", "Most members of a group.", at_least(1)),
    ConfigKey(
        "group.consumer.session.timeout.ms",
        _INT,
        "45000",
        "How long a member of the consumer protocol (KIP-848) may be silent; groups may set their own.",
        at_least(1),
    ),
    ConfigKey(
        "group.consumer.min.session.timeout.ms", _INT, "45000", "Shortest one a group may set.", at_least(1)
    ),
    ConfigKey(
        "group.consumer.max.session.timeout.ms", _INT, "60000", "Longest one a group may set.", at_least(1)
    ),
    ConfigKey(
        "group.consumer.heartbeat.interval.ms",
        _INT,
        "5000",
        "How often members of the consumer protocol send heartbeats; groups may set their own.",
        at_least(1),
    ),
    ConfigKey(
        "group.consumer.min.heartbeat.interval.ms", _INT, "5000", "Shortest one a group may set.", at_least(1)
    ),
    ConfigKey(
        "group.consumer.max.heartbeat.interval.ms", _INT, "15000", "Longest one a group may set.", at_least(1)
    ),
    ConfigKey(
        "group.consumer.max.size",
        _INT,
        "2147483647",
        "Most members of a group of the consumer protocol.",
        at_least(1),
    ),
    ConfigKey(
        "group.consumer.assignors",
        _LIST,
        "uniform,range",
        "Assignors that members may ask for; the first is for those who do not.",
        _check_assignors,
        ("uniform", "range"),
    ),
    ConfigKey(
        "group.consumer.migration.policy",
        _STRING,
        "bidirectional",
        "Whether a group with members may change its protocol: `upgrade` when a member of the consumer protocol joins "
        "a classic group, `downgrade` when the last of them leaves; an empty group always may.",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
    ),
    ConfigKey(
        "offsets.retention.minutes",
        _INT,
        "10080",
        "How long the offsets of an empty group are kept.",
        at_least(1),
    ),
    ConfigKey(
        "offsets.retention.check.interval.ms",
        _LONG,
        "600000",
        "How often expired offsets are looked for.",
        at_least(1),
    ),
    ConfigKey(
        "offsets.topic.num.partitions",
        _INT,
        "8",
        "Partitions of __consumer_offsets, fixed at its creation.",
        between(1, 1000),
    ),
    ConfigKey(
        "producer.id.expiration.ms",
        _INT,
        str(PRODUCER_ID_EXPIRATION_MS),
        "How long a partition remembers a producer that sends nothing and has no transaction open.",
        at_least(1),
        dynamic=True,
    ),
    ConfigKey("transaction.max.timeout.ms", _INT, "900000", "Longest timeout of a transaction.", at_least(1)),
    ConfigKey(
        "transactional.id.expiration.ms",
        _INT,
        "604800000",
        "How long an unused transactional id is remembered.",
        at_least(1),
    ),
    ConfigKey(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _INT,
        "3600000",
        "How often unused transactional ids are looked for.",
        at_least(1),
    ),
    ConfigKey(
        "transaction.state.log.num.partitions",
        _INT,
        "8",
        "Partitions of __transaction_state, fixed at its creation.",
        between(1, 1000),
    ),
    ConfigKey(
        "offset.metadata.max.bytes",
        _INT,
        "4096",
        "Longest text that may go with a committed offset.",
        at_least(0),
    ),
)


_GROUP_TIMES: Final = (
    # (name, its least, its most), as Kafka's GroupCoordinatorConfig checks them at the start
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
    """Raises ConfigError for a time of groups that is beyond the bounds which the broker holds groups to."""
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


# ConfigSource of DescribeConfigs: set while the broker runs, set at its start, declared.
BROKER_SOURCE, ALL_BROKERS_SOURCE, STATIC_SOURCE, DEFAULT_SOURCE = 2, 3, 4, 5


class TopicLayer(NamedTuple):
    """A default that a broker configuration sets for a topic's: `topic_text` is its `text` in the topic's unit."""

    name: str
    text: str
    source: int
    topic_text: str


class BrokerConfig:
    """Parsed values by name: `config["num.partitions"]` is an int, a bool, a str or a list by the declared type.

    `explicit` is what is set, by whomever: see `layers`.
    """

    def __init__(
        self, explicit: Mapping[str, str] | None = None, extra_keys: Iterable[ConfigKey] = ()
    ) -> None:
        """Raises ConfigError for an unknown name or an illegal value. `extra_keys` are the extensions'.

        A key whose name ends in `*` declares every name that begins so; those that are set are in `keys`.
        """
        declared = {key.name: key for key in (*BROKER_CONFIGS, *KAFKA_CONFIGS, *extra_keys)}
        self.keys: dict[str, ConfigKey] = {n: key for n, key in declared.items() if not n.endswith("*")}
        self._defaults = {name: key.default_value for name, key in self.keys.items()}
        self._families = [key for name, key in declared.items() if name.endswith("*")]
        self._static = dict(explicit or {})
        self._facts: dict[str, str] = {}
        self.unused: tuple[str, ...] = ()
        """What the file sets that has no effect here, each with the reason; see `load`."""
        self.set_dynamic({}, {})

    def tell(self, facts: Mapping[str, str]) -> None:
        """What the start has decided (where it listens, say), to be shown as if it had been set then."""
        self._facts.update(facts)

    def set_dynamic(self, all_brokers: Mapping[str, str], broker: Mapping[str, str]) -> None:
        """Replace what was set while the broker runs, for all brokers and for this one. Raises ConfigError."""
        values: dict[str, Any] = dict(self._defaults)
        explicit = {**self._static, **all_brokers, **broker}
        for name, text in explicit.items():
            key = self.keys.get(name)
            if key is None:
                key = self.key(name)
                if key is None:
                    raise self.unknown(name)
                # Those of a copy are its own.
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
        """The declaration of a configuration: by its name, of its family, or as one for a single listener."""
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
        """For a configuration that nobody declares: the nearest known name."""
        for_all = without_listener(name)
        prefix = "" if for_all is None else name[: -len(for_all)]
        return unknown_name("broker", name, [prefix + known for known in self.keys])

    def of_listener(self, listener: str, name: str) -> Any:
        """The value that counts for a listener: what is set for it alone, otherwise what is for all."""
        own = listener_prefix(listener) + name
        return self._values[own] if own in self.explicit else self._values[name]

    def is_set_for(self, listener: str, name: str) -> bool:
        """Whether it is set for the listener alone."""
        return listener_prefix(listener) + name in self.explicit

    def listeners(self, listen: tuple[str, int]) -> tuple[Listener, ...]:
        """In their order; `listen` is the address of the one there is where none is configured."""
        return listeners_of(self._values, self.explicit, listen)

    def with_dynamic(self, all_brokers: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        """This configuration as `set_dynamic` would make it. Raises ConfigError."""
        changed = copy(self)
        changed.set_dynamic(all_brokers, broker)
        return changed

    def layers(self, name: str) -> list[tuple[str | None, int]]:
        """Where the value of a configuration may come from, the place that counts first: (text, source)."""
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
        """The configuration of a file (`.toml`, otherwise Java properties) with `sets` on top.

        A file of Kafka's, which are properties, is taken whole: what has no effect here is left out, and `unused` says
        so of all of it. Everything that is wrong with a file is said at once, in one ConfigError; so is what a server
        must not be without, such as an authorizer that cannot be had.
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
                unused[name] = "no configuration of a broker" + (f"; did you mean {near!r}?" if near else "")
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
        """The broker configuration that gives a topic configuration its default; itself if there is none."""
        if topic_config in _TIMES:
            return _TIMES[topic_config][0][0]
        return _TOPIC_SYNONYMS.get(topic_config, topic_config)

    def topic_defaults(self) -> dict[str, str]:
        """Topic configurations that this configuration sets explicitly, as text."""
        return {
            topic: layer.topic_text
            for topic in (*_TOPIC_SYNONYMS, *_TIMES)
            for layer in self.topic_layers(topic)[:1]
        }

    def topic_layers(self, topic_config: str) -> list[TopicLayer]:
        """The defaults that this configuration sets for a topic configuration, the one that counts first."""
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
    """Names and values of a configuration file, as text; raises ConfigError."""
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
