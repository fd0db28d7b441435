"""TPC-H orders, customers and nations as Parquet, and the orders as JSON for an ordinary Kafka producer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from examples.stage import StepFailedError

SCALE_FACTOR = "0.1"


def generate(folder: Path, scale: str = SCALE_FACTOR) -> None:
    """Write orders, customer and nation at this scale factor into `folder`."""
    beside = Path(sys.executable).parent / "tpchgen-cli"
    command = str(beside) if beside.exists() else shutil.which("tpchgen-cli")
    if command is None:
        raise StepFailedError("tpchgen-cli is missing: pip install 'headrace[demo]'")
    folder.mkdir(parents=True, exist_ok=True)
    words = [command, "parquet", "-s", scale]
    words += ["--tables=orders,customer,nation", f"--output-dir={folder}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise StepFailedError(f"tpchgen-cli ended with {done.returncode}: {done.stderr.strip()[-500:]}")


def text(table: pa.Table, column: str) -> pa.ChunkedArray:
    """A text column as plain strings, whatever the Parquet file calls them."""
    return table.column(column).cast(pa.string())


def customers(folder: Path) -> pa.Table:
    """Rows of table `customer`."""
    raw = pq.read_table(folder / "customer.parquet")
    return pa.table(
        {
            "cust_key": raw.column("c_custkey").cast(pa.int32()),
            "name": text(raw, "c_name"),
            "phone": text(raw, "c_phone"),
            "nation_key": raw.column("c_nationkey").cast(pa.int32()),
            "acctbal": raw.column("c_acctbal").cast(pa.decimal128(15, 2)),
            "mktsegment": text(raw, "c_mktsegment"),
        }
    )


def nations(folder: Path) -> list[tuple[int, str]]:
    """(nation_key, name) of every nation."""
    raw = pq.read_table(folder / "nation.parquet")
    return list(zip(raw.column("n_nationkey").to_pylist(), text(raw, "n_name").to_pylist(), strict=True))


def order_keys(folder: Path) -> list[int]:
    """Keys of all orders, in the file's order."""
    keys: list[int] = pq.read_table(folder / "orders.parquet", columns=["o_orderkey"]).column(0).to_pylist()
    return keys


def orders_json(folder: Path) -> list[bytes]:
    """Every order as one JSON object. Prices are written digit by digit, never through a float."""
    raw = pq.read_table(folder / "orders.parquet")
    names = ("o_orderkey", "o_custkey", "o_totalprice", "o_orderdate", "o_orderpriority", "o_clerk")
    columns = [pc.cast(raw.column(name), pa.string()).to_pylist() for name in names]
    return [
        (
            f'{{"order_key":{key},"cust_key":{customer},"total_price":{price},"order_date":"{day}",'
            f'"order_priority":"{priority}","clerk":"{clerk}"}}'
        ).encode()
        for key, customer, price, day, priority, clerk in zip(*columns, strict=True)
    ]
