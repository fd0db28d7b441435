"""Iceberg's REST catalog, read-only, over the tiered tables: any engine with an Iceberg client finds them.

Namespaces are databases. The catalog's table `db.t` is the lake table that is `db.t$lake` elsewhere in Headrace; a
topic's dead letters are a table of their own. Each answer is built from the present state of the server and the lake;
nothing is cached. Paimon tables and tables that are not in the lake yet are not listed. Writes are refused: only
`headrace tier` puts rows into the lake, and its commits are a compare-and-set on these very tables.

Credentials of the lake's store (`datalake.iceberg.s3.*` and similar) are returned with a table only if callers have to
present a token of this catalog.

Source: Iceberg's `open-api/rest-catalog-open-api.yaml`.
"""

from __future__ import annotations

import hmac
import json
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.lake.adapter import LakeError
from headrace.tablelayer.lake.catalogs import lake_catalog
from headrace.tablelayer.lake.coordinator import ServerCoordinator, list_lake
from headrace.tablelayer.lake.iceberg_reader import IcebergReader
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.lake.topics import DEAD_LETTERS_SUFFIX, TopicLake
from headrace.tablelayer.model.messages.lake import ListedLake
from headrace.tablelayer.model.table.definition import StoredTable

LEVEL_SEPARATOR = "\x1f"
"""Separator of the levels of a namespace in a URL; our namespaces have one level."""
_FORMAT = "iceberg"
_STORE_PREFIXES = ("s3.", "gcs.", "adls.", "adlfs.", "oss.", "client.", "hdfs.")
_STORE_WORDS = ("io-impl", "py-io-impl")
_READ_ENDPOINTS = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics",
)


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A lake table's newest metadata, its location, and the properties to read its files, which may be secret."""

    location: str
    metadata: Mapping[str, Any]
    store: Mapping[str, str] = field(default_factory=dict, repr=False)


class Lakes(Protocol):
    """Present state of the tables and topics that are tiered into Iceberg."""

    def tables(self) -> dict[str, list[str]]:
        """Return the names of the tables by database."""

    def load(self, database: str, table: str) -> LoadedTable | None:
        """Load a table; None if there is no such table in the lake. Raises LakeError."""


class RestError(Exception):
    """Error that is answered as an error object of the specification."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind

    def body(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.kind, "code": self.status}}


class RestCatalog:
    """Answers requests. Callers have to present `token` (`Authorization: Bearer ...`); None: no token is needed."""

    def __init__(self, lakes: Lakes, token: str | None) -> None:
        self._lakes = lakes
        self._token = token

    def answer(
        self, method: str, target: str, authorization: str | None
    ) -> tuple[int, dict[str, Any] | None]:
        """Return status and body for a request line; body None: no body."""
        try:
            parts = [
                urllib.parse.unquote(part)
                for part in urllib.parse.urlsplit(target).path.strip("/").split("/")
            ]
            self._let_in(authorization)
            found = self._found(method, parts)
        except RestError as error:
            return error.status, error.body()
        except LakeError as error:
            return 500, RestError(500, "ServiceFailureException", str(error)).body()
        if found is None or method == "HEAD":
            return 204, None
        return 200, found

    def _let_in(self, authorization: str | None) -> None:
        if self._token is None:
            return
        given = (authorization or "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise RestError(
                401, "NotAuthorizedException", "present this catalog's token: Authorization: Bearer ..."
            )

    def _found(self, method: str, parts: list[str]) -> dict[str, Any] | None:
        if parts[:1] != ["v1"]:
            raise _no_place(parts)
        match parts[1:]:
            case ["namespaces", _, "tables", _, "metrics"] if method == "POST":
                return None  # the metrics of a scan, which are not kept
            case _ if method not in ("GET", "HEAD"):
                raise RestError(
                    406,
                    "UnsupportedOperationException",
                    "this catalog is read-only: rows come into the lake by `headrace tier`",
                )
            case ["config"]:
                return {"defaults": {}, "overrides": {}, "endpoints": list(_READ_ENDPOINTS)}
            case ["namespaces"]:
                return {"namespaces": [[name] for name in sorted(self._lakes.tables())]}
            case ["namespaces", namespace]:
                self._tables_of(namespace)
                return {"namespace": [namespace], "properties": {}}
            case ["namespaces", namespace, "tables"]:
                names = self._tables_of(namespace)
                return {"identifiers": [{"namespace": [namespace], "name": name} for name in names]}
            case ["namespaces", namespace, "views"]:
                self._tables_of(namespace)
                return {"identifiers": []}
            case ["namespaces", namespace, "tables", table]:
                return self._loaded(namespace, table)
            case ["namespaces", namespace, "views", view]:
                raise RestError(404, "NoSuchViewException", f"there is no view {namespace}.{view}")
        raise _no_place(parts)

    def _tables_of(self, namespace: str) -> list[str]:
        found = self._lakes.tables().get(namespace)
        if found is None:
            name = namespace.replace(LEVEL_SEPARATOR, ".")
            raise RestError(
                404, "NoSuchNamespaceException", f"database {name} has no table that is tiered into Iceberg"
            )
        return sorted(found)

    def _loaded(self, namespace: str, table: str) -> dict[str, Any]:
        found = self._lakes.load(namespace, table)
        if found is None:
            raise RestError(404, "NoSuchTableException", f"table {namespace}.{table} is not in the lake")
        config = dict(found.store) if self._token is not None else {}
        return {"metadata-location": found.location, "metadata": dict(found.metadata), "config": config}


def _no_place(parts: list[str]) -> RestError:
    return RestError(404, "NotFoundException", f"/{'/'.join(parts)} is not a path of an Iceberg REST catalog")


class TieredLakes:
    """`Lakes` of a server. `connection` is the table client's; `warehouse` overrides the server's setting."""

    def __init__(self, connection: Any, warehouse: str | None = None) -> None:
        self._connection = connection
        self._warehouse = warehouse
        self._coordinator = ServerCoordinator(connection, "catalog")

    def tables(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for listed in self._listed():
            for definition in self._definitions(listed):
                is_more = definition.path.table.endswith(DEAD_LETTERS_SUFFIX) and listed.is_topic
                if not is_more or self._reader(listed, definition).exists():
                    found.setdefault(definition.path.database, []).append(definition.path.table)
        return found

    def load(self, database: str, table: str) -> LoadedTable | None:
        for listed in self._listed():
            for definition in self._definitions(listed):
                if (definition.path.database, definition.path.table) == (database, table):
                    reader = self._reader(listed, definition)
                    return _loaded(reader) if reader.exists() else None
        return None

    def _listed(self) -> list[ListedLake]:
        return [
            each for each in list_lake(self._connection) if each.format == _FORMAT and each.snapshot_id >= 0
        ]

    def _definitions(self, listed: ListedLake) -> list[StoredTable]:
        """Return the definitions of an entry's lake tables; none if it does not exist any more."""
        try:
            if not listed.is_topic:
                return [self._connection.admin.describe_table(listed.name)]
            described = self._connection.kafka.describe_topic(listed.name)
        except KafkaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return []
            raise
        except TableError as error:
            if error.code in (TableErrorCode.TABLE_NOT_FOUND, TableErrorCode.DATABASE_NOT_FOUND):
                return []
            raise
        lake = TopicLake.parse(listed.name, described.required_configs())
        return [lake.undefined(listed.table_id), lake.dead_letters(listed.table_id)]

    def _reader(self, listed: ListedLake, definition: StoredTable) -> IcebergReader:
        status = self._coordinator.describe(listed.table_id)
        path = listed.name if listed.is_topic else definition.path
        return IcebergReader(definition, lake_catalog(status, self._warehouse, path).properties)


def _loaded(reader: IcebergReader) -> LoadedTable:
    store = {
        name: value
        for name, value in reader.properties.items()
        if name.startswith(_STORE_PREFIXES) or name in _STORE_WORDS
    }
    return LoadedTable(reader.metadata_location, json.loads(reader.metadata_text()), store)
