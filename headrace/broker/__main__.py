"""A plain broker without tables: `python -m headrace.broker --listen 127.0.0.1:9092 --data DIR`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.configs.listeners import parse_listener
from headrace.broker.net.poller import run_server
from headrace.broker.runtime.limited_lines import LimitedLines
from headrace.broker.runtime.malloc import keep_freed_memory
from headrace.broker.runtime.ports import SystemClock
from headrace.broker.server import Broker
from headrace.broker.stores.configured import configured_store


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.broker", description="A Kafka broker, without tables."
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help=(
            "address to listen on; port 0 takes a free one; default: the configuration listeners, or "
            "127.0.0.1:9092"
        ),
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="DIR",
        help="data directory; it is made if it does not exist",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration file: properties or .toml")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="one configuration")
    parser.add_argument("--log-level", default="WARNING", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    arguments = parser.parse_args()
    logging.basicConfig(level=arguments.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    root = logging.getLogger()
    lines = LimitedLines(root.handlers, SystemClock().monotonic)
    root.handlers[:] = [lines]
    keep_freed_memory()
    try:
        run_server(_serve(arguments, lines))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


async def _serve(arguments: argparse.Namespace, lines: LimitedLines) -> None:
    sets = {}
    for text in arguments.set:
        name, separator, value = text.partition("=")
        if not separator:
            raise ConfigError(f"--set {text!r} is not of the form name=value")
        sets[name] = value
    config = BrokerConfig.load(sets, arguments.config)
    if arguments.listen is not None and config["listeners"] is not None:
        raise ConfigError("--listen and the configuration listeners both say where to listen: leave one out")
    host, port = parse_listener(arguments.listen or "127.0.0.1:9092")
    clock = SystemClock()
    store = await configured_store(config, clock)
    broker = Broker(config, data_dir=arguments.data, host=host, port=port, clock=clock, store=store)
    await broker.start()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # changed certificates are noticed without SIGHUP
    sys.stdout.write(f"ready on {broker.host}:{broker.port}\n")
    sys.stdout.flush()
    summing_up = loop.create_task(lines.run())
    waiting = [loop.create_task(stop.wait()), loop.create_task(broker.run_forever())]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await broker.stop()
    waiting[0].cancel()
    await waiting[1]
    summing_up.cancel()
    lines.sum_up(whole=True)


if __name__ == "__main__":
    sys.exit(main())
