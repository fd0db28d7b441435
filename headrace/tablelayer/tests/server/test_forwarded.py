"""A batch that another broker forwards is checked as strictly as any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from headrace.broker.net.reply import CloseConnection
from headrace.protocol.errors import DecodeError
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.ipc import encode_ipc
from headrace.tablelayer.model.ddl import CreateTable, parse
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.server.bucket.remote_bucket import rows_of
from headrace.tablelayer.server.staged.ledger import Ledger
from headrace.tablelayer.tests.server.tables import tables

(STATEMENT,) = parse("CREATE TABLE t (k INT, s STRING NOT NULL, PRIMARY KEY (k) NOT ENFORCED)")
assert isinstance(STATEMENT, CreateTable)
SCHEMA = STATEMENT.definition.schema


def message(rows: dict[str, list[Any]]) -> bytes:
    kinds = {"k": pa.int32(), "s": pa.string()}
    return bytes(encode_ipc(pa.record_batch({name: pa.array(rows[name], kinds[name]) for name in rows})))


def sent(**changes: Any) -> m.PrepareRowsRequest:
    given: dict[str, Any] = {
        "rows": message({"k": [1, 2], "s": ["a", None]}),
        "deletes": b"\0\1",
        "sent_as": np.array([4, 7], "<i8").tobytes(),
        "kept": [m.KeptCells(column=SCHEMA.columns[1].id, cells=b"\1\0")],
    }
    return m.PrepareRowsRequest(**{**given, **changes})


def test_rows_of_another_broker_are_read() -> None:
    found = rows_of(sent(), SCHEMA)
    assert found.rows.to_pylist() == [{"k": 1, "s": "a"}, {"k": 2, "s": None}]
    assert found.deletes is not None
    assert found.deletes.tolist() == [False, True]
    assert found.sent_as is not None
    assert found.sent_as.tolist() == [4, 7]
    assert found.kept is not None
    assert {column: cells.tolist() for column, cells in found.kept.items()} == {
        SCHEMA.columns[1].id: [True, False]
    }
    plain = rows_of(sent(deletes=None, sent_as=None, kept=[]), SCHEMA)
    assert plain == replace(found, deletes=None, sent_as=None, kept=None, rows=plain.rows)


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": b""},
        {"rows": message({"k": [1, 2]})},
        {"rows": message({"k": [1, 2], "s": ["a", "b"]})[:-8]},
        {"rows": message({"k": [1, None], "s": ["a", "b"]})},
        {"deletes": b"\0"},
        {"sent_as": bytes(9)},
        {"sent_as": np.array([0, -1], "<i8").tobytes()},
        {"sent_as": np.array([0, 1 << 31], "<i8").tobytes()},
        {"kept": [m.KeptCells(column=SCHEMA.columns[1].id, cells=b"\1\0\1")]},
        {"kept": [m.KeptCells(column=99, cells=b"\1\0")]},
    ],
)
def test_malformed_forwarded_rows_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        rows_of(sent(**changes), SCHEMA)


async def test_a_malformed_decision_is_refused(tmp_path: Path) -> None:
    decided = Ledger("w", 1, 0, ("a",), 0, 1000, 0)
    async with tables(tmp_path) as made:
        table = await made.create("k INT", name="t")

        def asked(ledger: bytes) -> m.ApplyStagedRequest:
            return m.ApplyStagedRequest(table_id=table.table_id, ledger=ledger)

        assert (await made.broker.send(asked(decided.to_json()))).error_code == 0
        outside = replace(decided, attempts=("../a",)).to_json()
        assert (await made.broker.send(asked(outside))).error_code == TableErrorCode.INVALID_ROW
        for ledger in (
            b"",
            b"[]",
            b"{}",
            decided.to_json().replace(b'"producer_id": 1', b'"producer_id": "x"'),
        ):
            with pytest.raises(CloseConnection):
                await made.broker.send(asked(ledger))
