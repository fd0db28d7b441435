"""The table client: connect, write, look up, scan.

    from headrace import connect

    with connect("127.0.0.1:9092") as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS fruit (id INT, name STRING, PRIMARY KEY (id) NOT
        ENFORCED)")
        fruit = connection.table("default.fruit")
        fruit.upsert([{"id": 1, "name": "apple"}, {"id": 2, "name": "pear"}])
        fruit.lookup_one({"id": 1})                     # {"id": 1, "name": "apple"}
        fruit.to_arrow(columns=["name"])                # a pyarrow.Table
        for batch in fruit.scan(until="latest"):        # the state, then every change
            print(batch.batch, batch.change_types)

`connect` blocks and may be used from any thread; `connect_async` is the same with `await`. Rows go in as pyarrow Tables
or RecordBatches, lists of dicts, pandas or polars DataFrames, and come out as pyarrow. A retried write is applied once.

Errors:
- `TableError` and `KafkaError`: the server refused the request.
- `DataError`: the data does not fit the table.
- `AuthenticationFailed` and `ConnectionFailed`: nothing was done.
- `OutcomeUnknown`: the request may have been carried out; `RequestTimeout` and `ConnectionLost` say why.
"""

from __future__ import annotations

from headrace.protocol.loading.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
