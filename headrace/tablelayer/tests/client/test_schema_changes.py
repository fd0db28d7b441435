"""A table that changes while handles to it are open: writes, lookups and scans of every schema, over real sockets."""

import pytest

from headrace.tablelayer.client import DataError, Table, TableError, TableErrorCode
from headrace.tablelayer.model.ddl import DdlError

COLUMNS = "(id INT, name STRING, price FLOAT, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num' = '2')"


def by_id(table):
    return {row["id"]: row for row in table.to_arrow().to_pylist()}


def test_r4_2_old_handles_go_on_and_new_names_make_them_look(connection):
    connection.execute(f"CREATE TABLE old_handles {COLUMNS}")
    old = connection.table("old_handles")
    idle = connection.table("old_handles")
    old.upsert([{"id": 1, "name": "a", "price": 1.5}])
    connection.execute(
        "ALTER TABLE old_handles RENAME name TO title, ADD stock INT NOT NULL DEFAULT 3 AFTER id, MODIFY price DOUBLE"
    )
    new = connection.table("old_handles")
    new.upsert([{"id": 2, "title": "b", "price": 0.25, "stock": 9}, {"id": 3, "title": "c"}])
    idle.upsert([{"id": 4, "name": "d", "price": 2.0}])  # it knows nothing of the change
    expected = {
        1: {"id": 1, "stock": 3, "title": "a", "price": 1.5},
        2: {"id": 2, "stock": 9, "title": "b", "price": 0.25},
        3: {"id": 3, "stock": 3, "title": "c", "price": None},
        4: {"id": 4, "stock": 3, "title": "d", "price": 2.0},
    }
    assert by_id(new) == expected
    assert by_id(idle) == {
        number: {"id": number, "name": row["title"], "price": row["price"]}
        for number, row in expected.items()
    }
    assert [row["stock"] for row in new.lookup([2, 1, 3], columns=["stock"]).rows.to_pylist()] == [9, 3, 3]
    assert idle.lookup_one(2) == {"id": 2, "name": "b", "price": 0.25}
    # A name it does not know: it looks once, and goes on with what it finds.
    assert old.lookup_one(2, columns=["stock"]) == {"stock": 9}
    assert old.definition.schema.schema_id == 2
    idle.upsert([{"id": 5, "stock": 1}])
    assert idle.lookup_one(5) == {"id": 5, "stock": 1, "title": None, "price": None}
    with pytest.raises(DataError, match="unknown column 'nope'"):
        idle.upsert([{"id": 5, "nope": 1}])
    idle.partial([{"id": 6, "title": "f"}], ["id", "title"])
    assert idle.lookup_one(6) == {"id": 6, "stock": 3, "title": "f", "price": None}
    assert new.refresh().schema == new.definition.schema


def test_r4_2_scans_give_the_columns_they_were_opened_with(connection):
    connection.execute("CREATE TABLE scanned (a INT, b STRING) WITH ('bucket.num' = '1')")
    table = connection.table("scanned")
    table.append([{"a": 1, "b": "x"}])
    with table.scan(start="earliest") as whole, table.scan(["b"], start="earliest") as some:
        assert next(whole).batch.to_pylist() == [{"a": 1, "b": "x"}]
        assert next(some).batch.to_pylist() == [{"b": "x"}]
        connection.execute("ALTER TABLE scanned ADD c INT DEFAULT 5 FIRST, RENAME a TO a2, MODIFY a2 BIGINT")
        new = connection.table("scanned")
        new.append([{"a2": 2, "b": "y"}, {"a2": 3, "b": "z", "c": None}])
        assert next(whole).batch.to_pylist() == [{"a": 2, "b": "y"}, {"a": 3, "b": "z"}]
        assert next(some).batch.to_pylist() == [{"b": "y"}, {"b": "z"}]
        new.append([{"a2": 1 << 40, "b": "w"}])
        with pytest.raises(TableError, match="open the table again") as caught:
            next(whole)
        assert caught.value.code is TableErrorCode.SCHEMA_CHANGED
    assert new.to_arrow().to_pylist() == [
        {"c": 5, "a2": 1, "b": "x"},
        {"c": 5, "a2": 2, "b": "y"},
        {"c": None, "a2": 3, "b": "z"},
        {"c": 5, "a2": 1 << 40, "b": "w"},
    ]
    assert new.to_arrow(["c"]).column("c").to_pylist() == [5, 5, None, 5]
    assert new.limit(2, ["b", "c"]).to_pylist() == [{"b": "z", "c": None}, {"b": "w", "c": 5}]


def test_r4_2_a_lookup_whose_value_does_not_fit_any_more_reads_the_new_schema(connection):
    connection.execute(f"CREATE TABLE wider {COLUMNS.replace('name STRING', 'n INT')}")
    table = connection.table("wider")
    connection.execute("ALTER TABLE wider MODIFY n BIGINT")
    connection.table("wider").upsert([{"id": 1, "n": 1 << 40}])
    assert table.lookup_one(1) == {"id": 1, "n": 1 << 40, "price": None}


def test_prefix_lookups_in_every_schema(connection):
    connection.execute(
        "CREATE TABLE prefixed (a INT, b INT, v STRING, PRIMARY KEY (a, b) NOT ENFORCED)"
        " WITH ('bucket.num' = '2', 'bucket.key' = 'a')"
    )
    old = connection.table("prefixed")
    old.upsert([{"a": 1, "b": 1, "v": "x"}])
    connection.execute("ALTER TABLE prefixed RENAME a TO `the a`, ADD w INT DEFAULT 7 FIRST")
    new = connection.table("prefixed")
    new.upsert([{"the a": 1, "b": 2, "v": "y", "w": 8}])
    assert new.definition.bucket_key == ("the a",)
    assert new.prefix_lookup([1]).to_pylist() == [
        {"w": 7, "the a": 1, "b": 1, "v": "x"},
        {"w": 8, "the a": 1, "b": 2, "v": "y"},
    ]
    assert old.prefix_lookup([1]).to_pylist() == [{"a": 1, "b": 1, "v": "x"}, {"a": 1, "b": 2, "v": "y"}]


def test_statements_that_a_table_does_not_allow_point_at_the_word(connection):
    connection.execute(f"CREATE TABLE pointed {COLUMNS}")
    with pytest.raises(DdlError) as caught:
        connection.execute("ALTER TABLE pointed ADD x INT,\n  DROP id")
    assert (caught.value.line, caught.value.column, caught.value.word) == (2, 8, "id")
    assert connection.admin.describe_table("pointed").schema.schema_id == 1
    with pytest.raises(TableError, match=r"table default\.pointed has no option 'retention\.msec'"):
        connection.execute("ALTER TABLE pointed RESET ('retention.msec')")
    connection.execute("ALTER TABLE pointed RESET ('retention.ms')")
    connection.execute("ALTER TABLE IF EXISTS nowhere ADD x INT")
    with pytest.raises(TableError) as missing:
        connection.execute("ALTER TABLE nowhere ADD x INT")
    assert missing.value.code is TableErrorCode.TABLE_NOT_FOUND
    connection.execute(
        "CREATE DATABASE described COMMENT 'c' WITH ('a' = 'b'); ALTER DATABASE described RESET ('a')"
    )
    known = connection.admin.describe_database("described")
    assert (known.comment, dict(known.properties), known.table_count) == ("c", {}, 0)


def test_r6_a_partial_update_of_all_columns_that_a_handle_knows_leaves_later_ones_alone(connection):
    """The columns that were named are written, and cleared, and no others."""
    connection.execute("CREATE TABLE some (id INT, a INT, b INT, PRIMARY KEY (id) NOT ENFORCED)")
    old = connection.table("some")
    connection.execute("ALTER TABLE some ADD c INT")
    connection.table("some").upsert([{"id": each, "a": 1, "b": 1, "c": 7} for each in (1, 2)])
    old.partial([{"id": 1, "a": 5, "b": 6}], ["id", "a", "b"])
    old.partial([{"id": 2, "a": 5, "b": 6}], ["id", "a", "b"], only_existing=True)
    new = connection.table("some")
    assert by_id(new) == {each: {"id": each, "a": 5, "b": 6, "c": 7} for each in (1, 2)}
    old.delete([1], columns=["a", "b"])
    assert new.lookup_one(1) == {"id": 1, "a": None, "b": None, "c": 7}
    assert old.definition.schema.names == ["id", "a", "b"]
    old.delete([1])
    assert new.lookup_one(1) is None


def test_r6_named_columns_of_a_statement_are_a_partial_update_while_the_table_grows(connection, monkeypatch):
    """INSERT with a list of columns and UPDATE, of all columns that there were when they began."""
    connection.execute("CREATE TABLE growing (id INT, a INT, PRIMARY KEY (id) NOT ENFORCED)")
    write = Table.partial

    def late(self, rows, columns, **options):
        monkeypatch.setattr(Table, "partial", write)
        connection.execute(f"ALTER TABLE growing ADD c{len(self.definition.schema.names)} INT DEFAULT 3")
        connection.table("growing").upsert([{"id": 1, "a": 0, "c2": 7}])
        return write(self, rows, columns, **options)

    for text in ("INSERT INTO growing (id, a) VALUES (1, 5)", "INSERT INTO growing (id, a) SELECT 1, 5"):
        monkeypatch.setattr(Table, "partial", late)
        connection.sql(text)
        assert connection.table("growing").lookup_one(1)["a"] == 5
        assert connection.table("growing").lookup_one(1)["c2"] == 7
        connection.execute("DROP TABLE growing")
        connection.execute("CREATE TABLE growing (id INT, a INT, PRIMARY KEY (id) NOT ENFORCED)")
