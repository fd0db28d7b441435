"""The loads on log tables of Apache Fluss, by its own Rust-based client from PyPI; runs in the environment that
`bench.fluss_peer` makes for it.

`python -m bench.fluss_log_load ADDRESS`, then one command a line on stdin, one answer a line on stdout ("ok" and
numbers, or "error" and why):

- `create TABLE ZSTD|NONE`: in one bucket
- `append TABLE ROWS`: seconds until all are acknowledged
- `scan TABLE COLUMNS|- ROWS`: seconds from the first to the last row
- `drop TABLE`
"""

from __future__ import annotations

import asyncio
import sys
import time

import fluss

from bench.rows import WRITE_ROWS, log_rows

POLL_MS = 10_000


class Load:
    def __init__(self, connection: fluss.FlussConnection) -> None:
        self._connection = connection
        self._admin = connection.get_admin()

    async def create(self, table: str, compression: str) -> None:
        await self._admin.create_database("bench", ignore_if_exists=True)
        descriptor = fluss.TableDescriptor(
            fluss.Schema(log_rows(0, 1).schema),
            bucket_count=1,
            properties={"table.log.arrow.compression.type": compression},
        )
        await self._admin.create_table(fluss.TablePath("bench", table), descriptor)

    async def drop(self, table: str) -> None:
        await self._admin.drop_table(fluss.TablePath("bench", table))

    async def append(self, table: str, rows: str) -> float:
        handle = await self._connection.get_table(fluss.TablePath("bench", table))
        batches = [log_rows(start, WRITE_ROWS) for start in range(0, int(rows), WRITE_ROWS)]
        writer = handle.new_append().create_writer()
        started = time.perf_counter()
        for batch in batches:
            writer.write_arrow_batch(batch)
        await writer.flush()
        return time.perf_counter() - started

    async def scan(self, table: str, columns: str, rows: str) -> float:
        handle = await self._connection.get_table(fluss.TablePath("bench", table))
        started = time.perf_counter()
        scan = handle.new_scan()
        if columns != "-":
            scan = scan.project_by_name(columns.split(","))
        scanner = await scan.create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        left = int(rows)
        while left > 0:
            parts = await scanner.poll_record_batch(POLL_MS)
            if not parts:
                raise RuntimeError(f"{left} of {rows} rows did not come within {POLL_MS} ms")
            left -= sum(part.batch.num_rows for part in parts)
        return time.perf_counter() - started


async def main() -> None:
    connection = await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": sys.argv[1]}))
    load = Load(connection)
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, *words = line.split()
        try:
            answer = await getattr(load, verb)(*words)
        except Exception as error:  # noqa: BLE001  whoever asked decides
            sys.stdout.write(f"error {error!r}\n".replace("\\n", " "))
        else:
            sys.stdout.write(f"ok {'' if answer is None else answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
