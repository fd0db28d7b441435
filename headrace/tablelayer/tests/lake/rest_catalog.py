"""An Iceberg REST catalog for tests: namespaces and tables by Iceberg's REST OpenAPI, metadata files in a folder.

A commit works as in a real one: under the table's lock the requirements are checked, the updates applied, a new
metadata file written, and the table's pointer moved. A requirement that does not hold is answered with 409 and changes
nothing. Metadata is JSON throughout, so that no information of a client is lost in between. New tables get field ids of
the catalog's own, as the specification says.

`lose_answers` simulates the network: the commits that it picks are carried out, and the client gets 500. `first_field`
is the first field id of a new table.
"""

from __future__ import annotations

import copy
import json
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Name = tuple[tuple[str, ...], str]
_FIRST_PARTITION_FIELD = 1000
_LOGGED_METADATA_MAX = 100


class CatalogError(Exception):
    """Answered as an error object of the specification."""

    def __init__(self, code: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.body = {"error": {"code": code, "type": kind, "message": message}}


def _conflict(message: str) -> CatalogError:
    return CatalogError(409, "CommitFailedException", f"Requirement failed: {message}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# ---- metadata


def new_metadata(request: Json, location: str, first_field: int = 1) -> Json:
    """Return the metadata of a new table: field ids are assigned again, those of the top level first."""
    properties = dict(request.get("properties") or {})
    version = int(properties.pop("format-version", 2))
    ids: dict[int, int] = {}
    fields = _renumbered(request["schema"]["fields"], ids, first_field)
    parts = []
    for number, part in enumerate((request.get("partition-spec") or {}).get("fields", [])):
        field_id = _FIRST_PARTITION_FIELD + number
        parts.append({**part, "source-id": ids[part["source-id"]], "field-id": field_id})
    order = request.get("write-order") or {"order-id": 0, "fields": []}
    if order["fields"]:
        ordered = [{**field, "source-id": ids[field["source-id"]]} for field in order["fields"]]
        order = {"order-id": 1, "fields": ordered}
    metadata = {
        "format-version": version,
        "table-uuid": str(uuid.uuid4()),
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": _now_ms(),
        "last-column-id": max(ids.values(), default=0),
        "current-schema-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": fields}],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": parts}],
        "last-partition-id": _FIRST_PARTITION_FIELD - 1 + len(parts),
        "default-sort-order-id": order["order-id"],
        "sort-orders": [order],
        "properties": properties,
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
    }
    if version >= 3:
        metadata["next-row-id"] = 0
    return metadata


def _renumbered(fields: list[Json], ids: dict[int, int], first: int) -> list[Json]:
    """These fields of a struct with new ids, all of them before what is inside of them."""

    def new(old: int) -> int:
        ids[old] = len(ids) + first
        return ids[old]

    def inside(kind: Any) -> Any:
        if not isinstance(kind, dict):
            return kind
        if kind["type"] == "struct":
            return {**kind, "fields": _renumbered(kind["fields"], ids, first)}
        numbered = {name: new(kind[name]) for name in ("element-id", "key-id", "value-id") if name in kind}
        parts = {name: inside(kind[name]) for name in ("element", "key", "value") if name in kind}
        return {**kind, **numbered, **parts}

    numbered = [{**field, "id": new(field["id"])} for field in fields]
    return [{**field, "type": inside(field["type"])} for field in numbered]


def _field_ids(kind: Any) -> Iterator[int]:
    if isinstance(kind, dict):
        yield from (kind[name] for name in ("element-id", "key-id", "value-id") if name in kind)
        for name in ("element", "key", "value"):
            yield from _field_ids(kind.get(name))
        for field in kind.get("fields", []):
            yield field["id"]
            yield from _field_ids(field["type"])


def check(metadata: Json | None, requirements: list[Json]) -> None:
    """Raise CatalogError (409) for the first requirement that does not hold; `metadata` None: the table does not
    exist.
    """
    for each in requirements:
        kind = each["type"]
        if kind == "assert-create":
            if metadata is not None:
                raise _conflict("table already exists")
            continue
        if metadata is None:
            raise CatalogError(404, "NoSuchTableException", "Table does not exist")
        if kind == "assert-ref-snapshot-id":
            found = (metadata["refs"].get(each["ref"]) or {}).get("snapshot-id")
            wanted = each.get("snapshot-id")
        else:
            name = {
                "assert-table-uuid": ("table-uuid", "uuid"),
                "assert-last-assigned-field-id": ("last-column-id", "last-assigned-field-id"),
                "assert-current-schema-id": ("current-schema-id", "current-schema-id"),
                "assert-last-assigned-partition-id": ("last-partition-id", "last-assigned-partition-id"),
                "assert-default-spec-id": ("default-spec-id", "default-spec-id"),
                "assert-default-sort-order-id": ("default-sort-order-id", "default-sort-order-id"),
            }.get(kind)
            if name is None:
                raise CatalogError(400, "BadRequestException", f"unknown requirement {kind}")
            found, wanted = metadata[name[0]], each[name[1]]
        if found != wanted:
            raise _conflict(f"{kind} {each.get('ref', '')} expected {wanted}, found {found}")


class _Change:
    """Updates of one commit, applied to metadata in order. -1 stands for what the commit added last."""

    def __init__(self, metadata: Json) -> None:
        self.metadata = copy.deepcopy(metadata)
        self._last: dict[str, int] = {}

    def apply(self, update: Json) -> None:
        step = getattr(self, f"_{update['action'].replace('-', '_')}", None)
        if step is None:
            raise CatalogError(400, "BadRequestException", f"unknown update {update['action']}")
        step(update)

    def _added(self, listed: str, number: str, thing: Json, what: str) -> None:
        """Add an item of a numbered kind, or find the same existing one."""
        there: list[Json] = self.metadata[listed]
        same = [each for each in there if each["fields"] == thing["fields"]]
        if same:
            self._last[what] = same[0][number]
            return
        taken = {each[number] for each in there}
        if thing.get(number) in taken or thing.get(number) is None:
            thing = {**thing, number: max(taken, default=-1) + 1}
        there.append(thing)
        self._last[what] = thing[number]

    def _chosen(self, number: int, what: str) -> int:
        return self._last[what] if number == -1 else number

    def _assign_uuid(self, update: Json) -> None:
        self.metadata["table-uuid"] = update["uuid"]

    def _upgrade_format_version(self, update: Json) -> None:
        if update["format-version"] < self.metadata["format-version"]:
            raise CatalogError(400, "ValidationException", "a table's format does not go back")
        self.metadata["format-version"] = update["format-version"]
        if update["format-version"] >= 3:
            self.metadata.setdefault("next-row-id", 0)

    def _add_schema(self, update: Json) -> None:
        schema = update["schema"]
        self._added("schemas", "schema-id", schema, "schema")
        last = max(_field_ids(schema), default=0)
        self.metadata["last-column-id"] = max(self.metadata["last-column-id"], last)

    def _set_current_schema(self, update: Json) -> None:
        self.metadata["current-schema-id"] = self._chosen(update["schema-id"], "schema")

    def _add_spec(self, update: Json) -> None:
        self._added("partition-specs", "spec-id", update["spec"], "spec")
        last = max((field["field-id"] for field in update["spec"]["fields"]), default=0)
        self.metadata["last-partition-id"] = max(self.metadata["last-partition-id"], last)

    def _set_default_spec(self, update: Json) -> None:
        self.metadata["default-spec-id"] = self._chosen(update["spec-id"], "spec")

    def _add_sort_order(self, update: Json) -> None:
        self._added("sort-orders", "order-id", update["sort-order"], "order")

    def _set_default_sort_order(self, update: Json) -> None:
        self.metadata["default-sort-order-id"] = self._chosen(update["sort-order-id"], "order")

    def _add_snapshot(self, update: Json) -> None:
        snapshot, metadata = update["snapshot"], self.metadata
        number = snapshot.get("sequence-number", 0)
        if snapshot.get("parent-snapshot-id") is not None and number <= metadata["last-sequence-number"]:
            raise _conflict(f"snapshot's sequence number {number} is not after the table's last one")
        if metadata["format-version"] >= 3:
            if snapshot.get("first-row-id") != metadata["next-row-id"]:
                raise _conflict("snapshot's first row id is not the table's next one")
            metadata["next-row-id"] += snapshot.get("added-rows", 0)
        metadata["snapshots"].append(snapshot)
        metadata["last-sequence-number"] = max(number, metadata["last-sequence-number"])
        metadata["last-updated-ms"] = snapshot["timestamp-ms"]

    def _set_snapshot_ref(self, update: Json) -> None:
        metadata, name = self.metadata, update["ref-name"]
        if not any(each["snapshot-id"] == update["snapshot-id"] for each in metadata["snapshots"]):
            raise CatalogError(400, "ValidationException", f"there is no snapshot {update['snapshot-id']}")
        kept = {key: value for key, value in update.items() if key not in ("action", "ref-name")}
        metadata["refs"][name] = kept
        if name == "main":
            metadata["current-snapshot-id"] = update["snapshot-id"]
            entry = {"snapshot-id": update["snapshot-id"], "timestamp-ms": _now_ms()}
            metadata["snapshot-log"].append(entry)

    def _remove_snapshot_ref(self, update: Json) -> None:
        self.metadata["refs"].pop(update["ref-name"], None)
        if update["ref-name"] == "main":
            self.metadata.pop("current-snapshot-id", None)

    def _remove_snapshots(self, update: Json) -> None:
        gone, metadata = set(update["snapshot-ids"]), self.metadata
        for listed in ("snapshots", "snapshot-log", "statistics", "partition-statistics"):
            metadata[listed] = [each for each in metadata[listed] if each["snapshot-id"] not in gone]
        refs = metadata["refs"].items()
        metadata["refs"] = {name: ref for name, ref in refs if ref["snapshot-id"] not in gone}

    def _set_location(self, update: Json) -> None:
        self.metadata["location"] = update["location"]

    def _set_properties(self, update: Json) -> None:
        self.metadata["properties"] |= update["updates"]

    def _remove_properties(self, update: Json) -> None:
        for name in update["removals"]:
            self.metadata["properties"].pop(name, None)

    def _remove_schemas(self, update: Json) -> None:
        kept = [each for each in self.metadata["schemas"] if each["schema-id"] not in update["schema-ids"]]
        self.metadata["schemas"] = kept

    def _remove_partition_specs(self, update: Json) -> None:
        kept = [
            each for each in self.metadata["partition-specs"] if each["spec-id"] not in update["spec-ids"]
        ]
        self.metadata["partition-specs"] = kept


def changed(metadata: Json, updates: list[Json], location: str) -> Json:
    """The metadata after these updates; `location`: the file that has it as it is."""
    change = _Change(metadata)
    for update in updates:
        change.apply(update)
    after = change.metadata
    entry = {"metadata-file": location, "timestamp-ms": metadata["last-updated-ms"]}
    after["metadata-log"] = [*metadata["metadata-log"], entry][-_LOGGED_METADATA_MAX:]
    after["last-updated-ms"] = max(_now_ms(), after["last-updated-ms"])
    return after


# ---- the catalog


class RestCatalog:
    """A catalog and its server, on a free port of 127.0.0.1."""

    def __init__(self, warehouse: Path) -> None:
        self.warehouse = warehouse
        self.namespaces: dict[tuple[str, ...], Json] = {}
        self.tables: dict[Name, tuple[str, Json]] = {}
        """(metadata file, what is in it)"""
        self.commits = 0
        self.refused = 0
        self.first_field = 1
        self.lose_answers: Callable[[list[Json]], bool] = lambda _updates: False
        self._lock = threading.Lock()
        catalog = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                catalog.answer(self)

            do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815 - the same

            def log_message(self, *_given: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="rest catalog", daemon=True)
        self._thread.start()
        self.uri = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.properties = {"type": "rest", "uri": self.uri}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """One request. Bodies are JSON; HEAD answers have none."""
        size = int(handler.headers.get("Content-Length") or 0)
        text = handler.rfile.read(size)
        path, _, query = handler.path.partition("?")
        parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
        try:
            code, body = self._route(handler.command, parts, json.loads(text) if text else {}, query)
        except CatalogError as error:
            code, body = error.code, error.body
        sent = b"" if body is None or handler.command == "HEAD" else json.dumps(body).encode()
        handler.send_response(code)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(sent)))
        handler.end_headers()
        handler.wfile.write(sent)

    def _route(self, method: str, parts: list[str], body: Json, query: str) -> tuple[int, Json | None]:
        match [method, *parts]:
            case ["GET", "v1", "config"]:
                return 200, {"defaults": {}, "overrides": {}}
            case ["GET", "v1", "namespaces"]:
                parent = urllib.parse.parse_qs(query).get("parent")
                return 200, {"namespaces": [] if parent else [list(each) for each in self.namespaces]}
            case ["POST", "v1", "namespaces"]:
                return self._create_namespace(body)
            case ["GET" | "HEAD", "v1", "namespaces", name]:
                namespace = self._namespace(name)
                return 200, {"namespace": list(namespace), "properties": self.namespaces[namespace]}
            case ["DELETE", "v1", "namespaces", name]:
                del self.namespaces[self._namespace(name)]
                return 204, None
            case ["GET", "v1", "namespaces", name, "tables"]:
                namespace = self._namespace(name)
                listed = [
                    {"namespace": list(one), "name": table} for one, table in self.tables if one == namespace
                ]
                return 200, {"identifiers": listed}
            case ["POST", "v1", "namespaces", name, "tables"]:
                return self._create_table(self._namespace(name), body)
            case ["POST", "v1", "namespaces", _, "tables", _, "metrics"]:
                return 204, None
            case [_, "v1", "namespaces", name, "tables", table]:
                # An unknown namespace is answered as an unknown table: Spark's catalog looks for branches this way.
                return self._of_table(method, (_levels(name), table), body)
        raise CatalogError(404, "NoSuchViewException", f"nothing is at {'/'.join(parts)}")

    def _of_table(self, method: str, name: Name, body: Json) -> tuple[int, Json | None]:
        if method == "POST":
            return self._commit(name, body)
        with self._lock:
            found = self.tables.get(name)
            if found is None:
                raise CatalogError(404, "NoSuchTableException", f"Table does not exist: {name}")
            if method == "DELETE":
                del self.tables[name]
                return 204, None
        return 200, _loaded(*found)

    def _namespace(self, text: str) -> tuple[str, ...]:
        namespace = _levels(text)
        if namespace not in self.namespaces:
            raise CatalogError(404, "NoSuchNamespaceException", f"Namespace does not exist: {namespace}")
        return namespace

    def _create_namespace(self, body: Json) -> tuple[int, Json]:
        namespace, properties = tuple(body["namespace"]), body.get("properties") or {}
        with self._lock:
            if namespace in self.namespaces:
                raise CatalogError(409, "AlreadyExistsException", f"Namespace already exists: {namespace}")
            self.namespaces[namespace] = properties
        return 200, {"namespace": list(namespace), "properties": properties}

    def _create_table(self, namespace: tuple[str, ...], body: Json) -> tuple[int, Json]:
        name = (namespace, body["name"])
        location = body.get("location") or f"file://{self.warehouse}/{'/'.join(namespace)}/{body['name']}"
        metadata = new_metadata(body, location, self.first_field)
        with self._lock:
            if name in self.tables:
                raise CatalogError(409, "AlreadyExistsException", f"Table already exists: {name}")
            if body.get("stage-create"):
                return 200, {"metadata": metadata, "config": {}}
            return 200, self._put(name, metadata, 0)

    def _commit(self, name: Name, body: Json) -> tuple[int, Json]:
        with self._lock:
            location, metadata = self.tables.get(name, ("", None))
            try:
                check(metadata, body["requirements"])
                after = changed(metadata or _unborn(), body["updates"], location)
            except CatalogError as error:
                self.refused += error.code == 409
                raise
            answer = self._put(name, after, 0 if not location else _version(location) + 1)
            self.commits += 1
        if self.lose_answers(body["updates"]):
            raise CatalogError(500, "InternalServerError", "the answer is lost")
        return 200, answer

    def _put(self, name: Name, metadata: Json, version: int) -> Json:
        folder = Path(urllib.parse.urlsplit(metadata["location"]).path) / "metadata"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{version:05d}-{uuid.uuid4()}.metadata.json"
        file.write_text(json.dumps(metadata))
        self.tables[name] = (f"file://{file}", metadata)
        return _loaded(f"file://{file}", metadata)


def _loaded(location: str, metadata: Json) -> Json:
    return {"metadata-location": location, "metadata": metadata, "config": {}}


def _levels(text: str) -> tuple[str, ...]:
    return tuple(text.split("\x1f"))


def _version(location: str) -> int:
    return int(location.rsplit("/", 1)[1].split("-", 1)[0])


def _unborn() -> Json:
    """Return the base of the updates of a staged table, which contain everything."""
    empty = new_metadata({"schema": {"fields": []}}, "")
    empty |= {"format-version": 1, "schemas": [], "partition-specs": [], "sort-orders": []}
    return {**empty, "last-column-id": 0, "last-partition-id": _FIRST_PARTITION_FIELD - 1, "metadata-log": []}


@contextmanager
def rest_catalog(warehouse: Path) -> Iterator[RestCatalog]:
    catalog = RestCatalog(warehouse)
    try:
        yield catalog
    finally:
        catalog.close()
