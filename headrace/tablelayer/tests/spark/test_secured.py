"""Spark against a server with SASL_SSL and users: readers and writers in executors, streams, joins and views.

No output of Spark has the password in it, and a user with rights to some columns reads these.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.tablelayer.client import ConnectionSettings, connect
from headrace.tablelayer.lake.change_source import TableChanges
from headrace.tablelayer.spark.builder import create_view, table
from headrace.tablelayer.spark.delta_joins import delta_join
from headrace.tablelayer.spark.lookups import lookup_join
from headrace.tablelayer.sql.session import Session
from headrace.tablelayer.tests.spark.spark_tables import finish
from simulator.certificates import identity

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

PASSWORD = "pencil of wonder"


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, make_server: Callable[..., Any]
) -> Iterator[ConnectionSettings]:
    folder = tmp_path_factory.mktemp("secured")
    authority = identity("authority")
    ca = folder / "ca.pem"
    ca.write_text(authority.certificate_pem)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{module} required username="ann" password="{PASSWORD}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ca),
    }
    server = make_server(
        folder,
        {
            "listeners": "SASL_SSL://127.0.0.1:0",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                f'{module} required username="ann" password="{PASSWORD}" user_ann="{PASSWORD}"'
                f' user_bob="{PASSWORD} of bob";'
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ann",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(identity("server", authority).write(folder, "server")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(ca),
        },
        properties,
    )
    server.start()
    yield ConnectionSettings.make(server.address, properties)
    server.stop()


def shown(frame: Any) -> str:
    """Return Spark's text of a frame."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        frame.explain(True)
        frame.explain("formatted")
    return f"{text.getvalue()}{frame._jdf.queryExecution()}{frame!r}"


def test_a_secured_server_is_read_written_followed_and_joined(
    spark: Any, secured: ConnectionSettings, tmp_path: Path
) -> None:
    with connect(secured) as connection:
        connection.execute("CREATE TABLE fruit (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
        connection.execute("CREATE TABLE price (id INT, amount INT, PRIMARY KEY (id) NOT ENFORCED)")
        definition = connection.admin.describe_table("fruit")
    options = {"bootstrap.servers": secured.bootstrap} | {
        f"kafka.{name}": value for name, value in secured.properties
    }
    rows = spark.createDataFrame([(1, "apple"), (2, "pear")], "id INT, name STRING")
    rows.write.format("headrace").options(**options, table="default.fruit").mode("append").save()
    prices = spark.createDataFrame([(1, 10)], "id INT, amount INT")
    prices.write.format("headrace").options(**options, table="default.price").mode("append").save()

    read = spark.read.format("headrace").options(**options, table="default.fruit").load()
    built = table(spark, "default.fruit", secured).where("id > 1").to_df()
    create_view(spark, "secured_fruit", "default.fruit", bootstrap=secured)
    view = spark.sql("SELECT count(*) FROM secured_fruit")
    joined = lookup_join(rows, secured, "default.price", on={"id": "id"})
    delta = delta_join(spark, "default.fruit", "default.price", on={"id": "id"}, bootstrap=secured)
    stream = (
        spark.readStream.format("headrace").options(**options, table="default.fruit", mode="changelog").load()
    )
    for frame in (read, built, view, joined, delta, stream):
        assert PASSWORD not in shown(frame)
    assert sorted(read.collect()) == [(1, "apple"), (2, "pear")]
    assert built.collect() == [(2, "pear")]
    assert view.collect() == [(2,)]
    assert sorted(joined.collect()) == [(1, "apple", 10), (2, "pear", None)]
    assert delta.collect() == [(1, "apple", 10)]
    with connect(secured) as connection:
        changes = TableChanges(connection, secured, definition)
        tail = changes.changes(spark, dict.fromkeys(changes.latest(), 0), changes.latest())
        assert PASSWORD not in shown(tail)
        assert tail.count() == 2

    writer = stream.writeStream.format("memory").queryName("secured_changes")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    finish(query)
    assert spark.sql("SELECT count(*) FROM secured_changes").collect() == [(2,)]
    assert PASSWORD not in str(query.lastProgress)
    assert not [
        each for each in tmp_path.rglob("*") if each.is_file() and PASSWORD.encode() in each.read_bytes()
    ]

    wrong = options | {"kafka.sasl.password": "another " + PASSWORD}
    with pytest.raises(Exception, match="refused user ann by PLAIN") as caught:
        spark.read.format("headrace").options(**wrong, table="default.fruit").load()
    assert "another " + PASSWORD not in str(caught.value)


def run_sql(secured: ConnectionSettings, *statements: str) -> None:
    with connect(secured) as connection:
        for statement in statements:
            list(Session(connection).run(statement))


@pytest.mark.parametrize("key", [", PRIMARY KEY (a) NOT ENFORCED", pytest.param("", marks=pytest.mark.soak)])
def test_sql_of_a_user_with_some_columns_is_limited_to_them(
    spark: Any, secured: ConnectionSettings, key: str
) -> None:
    """A query of these columns by `format("headrace")` or a view is answered; all others are refused by name."""
    name = "people" if key else "visits"
    run_sql(
        secured,
        f"CREATE TABLE {name} (a STRING, b INT, c STRING{key})",
        f"INSERT INTO {name} VALUES ('x', 10, 'hidden'), ('y', 20, 'hidden')",
        f"GRANT SELECT (a, b) ON {name} TO bob",
    )
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    properties = dict(secured.properties) | {
        "sasl.jaas.config": f'{module} required username="bob" password="{PASSWORD} of bob";'
    }
    options = {"bootstrap.servers": secured.bootstrap, "table": f"default.{name}"} | {
        f"kafka.{name}": value for name, value in properties.items()
    }
    reader = spark.read.format("headrace").options(**options)
    reader.option("columns", "a,b").load().createOrReplaceTempView(name)
    assert sorted(spark.sql(f"SELECT * FROM {name}").collect()) == [("x", 10), ("y", 20)]
    assert spark.sql(f"SELECT b FROM {name} WHERE a = 'y'").collect() == [(20,)]
    assert spark.sql(f"SELECT sum(b), max(a) FROM {name}").collect() == [(30, "y")]
    bobs = ConnectionSettings.make(secured.bootstrap, properties)
    assert table(spark, f"default.{name}", bobs).select("b").where("a = 'x'").to_df().collect() == [(10,)]
    for frame in (
        spark.read.format("headrace").options(**options).load(),
        spark.read.format("headrace").options(**options, columns="a,c").load(),
        table(spark, f"default.{name}", bobs).select("a").where("c = 'hidden'").to_df(),
    ):
        with pytest.raises(
            Exception, match=r"not authorized[^\n]*c of [^\n]*withheld; a, b may be read"
        ) as refused:
            frame.collect()
        assert PASSWORD not in str(refused.value)
    run_sql(secured, f"REVOKE SELECT (a, b) ON {name} FROM bob")
    with pytest.raises(Exception, match=r"not authorized|there is no table"):
        spark.sql(f"SELECT a FROM {name}").collect()
