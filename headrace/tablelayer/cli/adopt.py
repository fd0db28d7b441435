"""`headrace cluster adopt`: makes a data directory part of a cluster, while no server uses it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import typer

from headrace.broker.cluster.adoption import Adopted, adopt
from headrace.broker.configs.broker_config import STATIC_SOURCE, BrokerConfig
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import STORE_LOST, StoreError, SystemClock, SystemEntropy
from headrace.broker.stores.configured import configured_store
from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.cli.output import size_text
from headrace.tablelayer.cli.serve import parse_sets
from headrace.tablelayer.cli.words import counted
from headrace.tablelayer.server.extension import TableExtension


def adopt_directory(
    data: Path, zookeeper: str | None, sets: list[str], config_file: Path | None, *, dry_run: bool
) -> None:
    """Adopt a data directory. Raises CommandError, ConfigError."""
    given = parse_sets(sets)
    if zookeeper is not None:
        given["zookeeper.connect"] = zookeeper
    config = BrokerConfig.load(given, config_file, TableExtension().broker_configs())
    address = config["zookeeper.connect"]
    if address is None:
        raise CommandError(
            "name the new cluster's path in ZooKeeper with --zookeeper, for example 127.0.0.1:2181/headrace"
        )
    found = asyncio.run(_adopt(data, config, dry_run))
    broker = f"broker {found.node_id} of cluster {found.cluster_id}"
    start = f"headrace serve --data {data} --zookeeper {address} --set node.id={found.node_id}"
    if not found.is_new:
        typer.echo(f"{data} already belongs to {broker} at {address}; start it with\n  {start}")
        return
    typer.echo(
        f"{data} has {counted(found.partitions, 'partition')} of {counted(found.topics, 'topic')}, tables included;"
        f" {counted(found.nodes, 'node')} of {size_text(found.size_bytes)} "
        + (f"would be written to {address}" if dry_run else f"are now at {address}")
    )
    if not found.was_clean:
        typer.echo("it was not stopped cleanly: its next start checks all of its logs")
    if dry_run:
        typer.echo(f"it can become {broker}; nothing was changed")
    else:
        typer.echo(
            f"it is {broker} from now on, and cannot start without ZooKeeper any more; start it with\n  {start}"
        )


async def _adopt(data: Path, config: BrokerConfig, dry_run: bool) -> Adopted:
    store = await configured_store(config, SystemClock(), makes_path=not dry_run)
    assert store is not None
    is_set = config.layers("node.id")[0][1] == STATIC_SOURCE
    try:
        return await adopt(
            data,
            store,
            SystemDisk(),
            SystemEntropy(),
            node_id=config["node.id"] if is_set else None,
            dry_run=dry_run,
        )
    except (*STORE_LOST, StoreError) as error:
        raise CommandError(
            f"the adoption is not finished, because ZooKeeper refused it or was lost: {error}. Run the command again"
        ) from error
    finally:
        await store.close()
