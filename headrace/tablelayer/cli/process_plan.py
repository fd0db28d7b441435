"""The plan of `headrace serve --processes N`: the options of each broker process. Pure.

Process number i has `node.id` + i, a folder of its own in the data directory, and every port of the first process plus
i. Internal topics have one replica unless the configuration says otherwise, because all replicas would be on one
machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from headrace.broker.cluster.processes import folder_of
from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.configs.listeners import Listener, parse_listener
from headrace.tablelayer.cli.options import LogFormat

ONE_REPLICA: Final = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
_PORT_MAX: Final = 65_535


class ProcessOptions(msgspec.Struct, frozen=True):
    """The options of one process: those of `headrace serve`, with `broker_id` also among `sets`."""

    broker_id: int
    data: str
    listen: str | None
    sets: dict[str, str]
    config: str | None
    metrics: str | None
    log_format: LogFormat
    verbose: bool


def plan_processes(
    count: int,
    listen: tuple[str, int],
    data: Path,
    sets: Mapping[str, str],
    config_file: Path | None,
    config: BrokerConfig,
    *,
    metrics: str | None,
    log_format: LogFormat,
    verbose: bool,
) -> list[ProcessOptions]:
    """Return the options of each process. `config` is the configuration of `sets` and the file. Raises ConfigError."""
    wrong = sorted(name for name in config.explicit if name.startswith("zookeeper."))
    if wrong:
        raise ConfigError(
            f"--processes and {wrong[0]} exclude each other: the processes of one machine have a coordinator of their"
            " own. Leave one out"
        )
    first_id = config["node.id"]
    listeners = config.listeners(listen)
    metrics_at = None if metrics is None else parse_listener(metrics)
    _check_ports(count, listeners, metrics_at)
    defaults = {name: text for name, text in ONE_REPLICA.items() if name not in config.explicit}
    return [
        ProcessOptions(
            first_id + number,
            str(folder_of(data, first_id + number)),
            _address(*_moved(listen, number)) if config["listeners"] is None else None,
            {**defaults, **sets, **_addresses(config, listeners, number), "node.id": str(first_id + number)},
            None if config_file is None else str(config_file),
            None if metrics_at is None else _address(*_moved(metrics_at, number)),
            log_format,
            verbose,
        )
        for number in range(count)
    ]


def _check_ports(count: int, listeners: tuple[Listener, ...], metrics: tuple[str, int] | None) -> None:
    """Check that no two addresses of all processes are the same. Raises ConfigError."""
    firsts = [(each.name, each.host, each.port) for each in listeners]
    if metrics is not None:
        firsts.append(("--metrics", *metrics))
    taken: dict[tuple[str, int], str] = {}
    for name, host, port in firsts:
        if port == 0:
            raise ConfigError(
                f"{name}: port 0 cannot be used with --processes: process number i has the first one's port plus i."
                " Choose a port"
            )
        for number in range(count):
            _, own = _moved((host, port), number)
            other = taken.setdefault((host, own), name)
            if other != name:
                raise ConfigError(
                    f"{other} and {name} would both have port {own}: each has {count} ports in a row, one of each"
                    f" process. Choose ports that are {count} or more apart"
                )


def _addresses(config: BrokerConfig, listeners: tuple[Listener, ...], number: int) -> dict[str, str]:
    """Return the configurations of addresses of one process, as far as they are configured."""
    found = {}
    if config["listeners"] is not None:
        found["listeners"] = ",".join(
            str(msgspec.structs.replace(each, port=each.port + number)) for each in listeners
        )
    if config["advertised.listeners"] is not None:
        found["advertised.listeners"] = ",".join(
            f"{each.name}://{_address(host, port and _moved((host, port), number)[1])}"
            for each in listeners
            if each.advertised is not None
            for host, port in [each.advertised]
        )
    return found


def _moved(address: tuple[str, int], number: int) -> tuple[str, int]:
    host, port = address
    if port + number > _PORT_MAX:
        raise ConfigError(
            f"process number {number} would have port {port + number}: choose a lower first port"
        )
    return host, port + number


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
