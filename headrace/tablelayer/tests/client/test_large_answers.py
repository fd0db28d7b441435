"""Answers above a server's limit: the client asks for the rest, without an effect for its caller."""

import random

import pytest

from headrace.tablelayer.client import connect
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.tests.client.conftest import BrokerThread

ANSWER_BYTES = 20_000
TEXT = "x" * 2_000


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    broker = BrokerThread(tmp_path_factory.mktemp("narrow"), Limits(answer_bytes_max=ANSWER_BYTES)).start()
    with connect(broker.address) as connection:
        yield connection
    broker.stop()


def table_of(narrow, name, columns, rows):
    narrow.execute(f"CREATE TABLE {name} ({columns}) WITH ('bucket.num' = '3')")
    table = narrow.table(name)
    (table.upsert if table.definition.is_primary_key_table else table.append)(rows)
    return table


def test_lookups_of_many_keys(narrow):
    rows = [{"id": n, "text": f"{n}{TEXT}"} for n in range(100)]
    table = table_of(narrow, "looked_up", "id INT, text STRING, PRIMARY KEY (id) NOT ENFORCED", rows)
    asked = [random.Random(5).randrange(150) for _ in range(300)]
    result = table.lookup([{"id": n} for n in asked])
    assert result.found.tolist() == [n < 100 for n in asked]
    texts = result.rows.column("text").to_pylist()
    assert texts == [rows[n]["text"] if n < 100 else None for n in asked]
    huge = {"id": 7, "text": "y" * (3 * ANSWER_BYTES)}
    table.upsert(huge)
    assert table.lookup_one(7) == huge


def test_prefix_lookups_of_many_rows(narrow):
    narrow.execute(
        "CREATE TABLE by_prefix (a INT, b INT, text STRING, PRIMARY KEY (a, b) NOT ENFORCED) "
        "WITH ('bucket.num' = '3', 'bucket.key' = 'a')"
    )
    table = narrow.table("by_prefix")
    table.upsert([{"a": n // 40, "b": n, "text": TEXT} for n in range(120)])
    owners, rows = table.prefix_lookup_grouped([{"a": a} for a in (2, 9, 0, 1)])
    assert owners.tolist() == [0] * 40 + [2] * 40 + [3] * 40
    assert rows.column("b").to_pylist() == [*range(80, 120), *range(80)]


@pytest.mark.parametrize("condition", [None, "n >= 10"])
def test_r21_1_limits(narrow, condition):
    name = "all_of" if condition is None else "some_of"
    rows = [{"n": n, "text": TEXT} for n in range(150)]
    log = table_of(narrow, f"{name}_log", "n INT, text STRING", rows)
    keyed = table_of(narrow, f"{name}_keys", "n INT, text STRING, PRIMARY KEY (n) NOT ENFORCED", rows)
    first = 0 if condition is None else 10
    for table in (log, keyed):
        found = table.limit(1_000, filter=condition).column("n").to_pylist()
        assert sorted(found) == list(range(first, 150))
        assert len(table.limit(30, filter=condition)) == 30
    if condition is None:
        narrow.execute("CREATE TABLE one_bucket (n INT, text STRING) WITH ('bucket.num' = '1')")
        one = narrow.table("one_bucket")
        for start in range(0, 150, 10):
            one.append(rows[start : start + 10])
        assert one.limit(60).column("n").to_pylist() == list(range(90, 150))
