"""The lake formats that a server offers, and the one that it records in new tables (`datalake.format`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.tablelayer.model.lake.topic_options import TopicOptions
from headrace.tablelayer.model.options.table_options import DatalakeFormat, TableOptions
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.server.lake_catalogs import FORMAT_CONFIG, has_catalog


@dataclass(frozen=True, slots=True)
class ServerLakes:
    """The formats with a place for their tables, and the one of tables that name none (None: there is none)."""

    offered: frozenset[DatalakeFormat]
    default: DatalakeFormat | None

    def choose(
        self, config: Mapping[str, str], name: str = TableOptions.datalake_format.name
    ) -> Mapping[str, str]:
        """Return the configuration with the server's format, unless it has one."""
        if name in config or self.default is None:
            return config
        return {**config, name: self.default.value}

    def complaint(self, definition: TableDefinition) -> str | None:
        """Return why this server cannot tier a table; None if it can, or if the table is not tiered."""
        if not definition.settings.datalake_enabled:
            return None
        front = f"table {definition.path} has '{TableOptions.datalake_enabled.name}' = 'true'"
        return self._missing(front, definition.settings.datalake_format, TableOptions.datalake_format.name)

    def topic_complaint(self, topic: str, chosen: DatalakeFormat) -> str | None:
        """Return why this server cannot tier a plain topic; None if it can."""
        front = f"topic {topic} has '{TopicOptions.enabled.name}' = 'true'"
        return self._missing(front, chosen, TopicOptions.format.name)

    def _missing(self, front: str, chosen: DatalakeFormat | None, option: str) -> str | None:
        if chosen in self.offered:
            return None
        wanted = (chosen or DatalakeFormat.ICEBERG).value
        other = "".join(f" choose '{option}' = '{each.value}'," for each in sorted(self.offered))
        return (
            f"{front}, but this server has no {chosen.value + ' ' if chosen else ''}lake:{other} start it with"
            f" --set datalake.{wanted}.warehouse=FOLDER, or with --set {FORMAT_CONFIG}={wanted} if `headrace tier"
            " --warehouse` names the folder"
        )


NO_LAKES = ServerLakes(frozenset(), None)


def server_lakes(config: BrokerConfig) -> ServerLakes:
    """Return the lakes of a broker. Without `datalake.format`, Iceberg comes before Paimon."""
    chosen = config[FORMAT_CONFIG]
    offered = [each for each in DatalakeFormat if has_catalog(config, each.value) or each.value == chosen]
    default = DatalakeFormat(chosen) if chosen else next(iter(offered), None)
    return ServerLakes(frozenset(offered), default)
