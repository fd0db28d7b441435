"""The reading side of Iceberg's REST catalog: what it answers, and pyiceberg as a caller over HTTP.

Spark is a caller in `headrace/tablelayer/tests/spark/test_lake_catalog.py`.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, UnauthorizedError
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField, StringType

from headrace.tablelayer.cli.catalog import CatalogServer
from headrace.tablelayer.lake.adapter import LakeError
from headrace.tablelayer.lake.rest_catalog import LoadedTable, RestCatalog
from headrace.tablelayer.tests.lake.hadoop_folder import HadoopFolder

TOKEN = "let-me-in"
STORE = {"s3.access-key-id": "a", "s3.secret-access-key": "open-sesame"}


class Folder:
    """`Lakes` of one table with three rows."""

    def __init__(self, folder: Path, store: Mapping[str, str] = STORE) -> None:
        (folder / "metadata").mkdir()
        catalog = HadoopFolder(folder)
        schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "v", StringType()))
        metadata = new_table_metadata(
            schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, str(folder), {}
        )
        place = catalog.write(metadata)
        table = Table(("shop", "orders"), metadata, place, load_file_io({}, place), catalog)
        table.append(pa.table({"id": [1, 2, 3], "v": ["a", "b", None]}))
        place = table.metadata_location
        self.table = LoadedTable(place, json.loads(Path(place).read_text()), store)

    def tables(self) -> dict[str, list[str]]:
        return {"shop": ["orders"], "a b/c": ["broken"]}

    def load(self, database: str, table: str) -> LoadedTable | None:
        if table == "broken":
            raise LakeError("its store is away")
        return self.table if (database, table) == ("shop", "orders") else None


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("lake"))


@pytest.fixture
def address(lakes: Folder) -> Iterator[str]:
    serving = CatalogServer(("127.0.0.1", 0), RestCatalog(lakes, TOKEN))
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    with serving:
        yield f"http://127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("request_line", "status", "kind"),
    [
        ("GET /v1/config?warehouse=x", 200, None),
        ("GET /v1/namespaces", 200, None),
        ("GET /v1/namespaces/a%20b%2Fc/tables", 200, None),
        ("HEAD /v1/namespaces/shop", 204, None),
        ("HEAD /v1/namespaces/shop/tables/orders", 204, None),
        ("POST /v1/namespaces/shop/tables/orders/metrics", 204, None),
        ("GET /v1/namespaces/nobody/tables", 404, "NoSuchNamespaceException"),
        ("GET /v1/namespaces/shop%1Forders/tables", 404, "NoSuchNamespaceException"),
        ("HEAD /v1/namespaces/shop/tables/nothing", 404, "NoSuchTableException"),
        ("GET /v1/namespaces/shop/views/orders", 404, "NoSuchViewException"),
        ("GET /v1/namespaces/a%20b%2Fc/tables/broken", 500, "ServiceFailureException"),
        ("GET /elsewhere", 404, "NotFoundException"),
        ("GET /", 404, "NotFoundException"),
        ("POST /v1/namespaces", 406, "UnsupportedOperationException"),
        ("POST /v1/namespaces/shop/tables/orders", 406, "UnsupportedOperationException"),
        ("DELETE /v1/namespaces/shop/tables/orders", 406, "UnsupportedOperationException"),
    ],
)
def test_requests_to_the_rest_catalog_have_their_status_and_error_type(
    lakes: Folder, request_line: str, status: int, kind: str | None
) -> None:
    method, _, target = request_line.partition(" ")
    found, body = RestCatalog(lakes, None).answer(method, target, None)
    assert found == status
    error = (body or {}).get("error", {"type": None})
    assert error["type"] == kind
    if kind is not None:
        assert error["code"] == status


def test_a_token_is_asked_for_and_only_then_are_credentials_handed_out(lakes: Folder) -> None:
    target = "/v1/namespaces/shop/tables/orders"
    guarded = RestCatalog(lakes, TOKEN)
    for wrong in (None, "", "Bearer", f"Bearer {TOKEN}x", "Bearer Ünicode"):
        status, body = guarded.answer("GET", target, wrong)
        assert (status, "metadata" in (body or {})) == (401, False)
    status, body = guarded.answer("GET", target, f"Bearer {TOKEN}")
    assert (status, (body or {})["config"]) == (200, STORE)
    _, open_to_all = RestCatalog(lakes, None).answer("GET", target, None)
    assert (open_to_all or {})["config"] == {}
    assert STORE["s3.secret-access-key"] not in repr(lakes.table)


def test_pyiceberg_finds_and_reads_the_tables(address: str) -> None:
    with pytest.raises(UnauthorizedError):
        load_catalog("stranger", type="rest", uri=address)
    catalog = load_catalog("lake", type="rest", uri=address, token=TOKEN)
    assert ("shop",) in catalog.list_namespaces()
    assert catalog.list_tables("shop") == [("shop", "orders")]
    table = catalog.load_table("shop.orders")
    assert table.scan(row_filter="id > 1").to_arrow().to_pydict() == {"id": [2, 3], "v": ["b", None]}
    with pytest.raises(NoSuchTableError):
        catalog.load_table("shop.nothing")
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables("nobody")
    with pytest.raises(Exception, match="does not support endpoint: POST"):
        table.append(pa.table({"id": [4], "v": ["x"]}))
    catalog.close()


def test_malformed_requests_are_refused_and_the_next_is_served(address: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(
            urllib.request.Request(f"{address}/v1/config", data=b"", headers={"Content-Length": "x"})
        )
    assert caught.value.code in (400, 413)
    caught.value.close()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{address}/v1/config")
    assert caught.value.code == 401
    caught.value.close()
