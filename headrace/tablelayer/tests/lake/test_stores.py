"""Settings of an object store mean the same by each of their usual names, for Hadoop, pyiceberg and pyarrow."""

from __future__ import annotations

import pytest

from headrace.tablelayer.lake.stores import (
    hadoop_settings,
    iceberg_properties,
    open_files,
    s3_settings,
    scheme_of,
)

ICEBERG = {
    "s3.endpoint": "http://store:7070",
    "s3.access-key-id": "k",
    "s3.secret-access-key": "s",
    "s3.session-token": "t",
    "s3.region": "eu-1",
    "s3.path-style-access": "true",
}
PAIMON = {
    "s3.endpoint": "http://store:7070",
    "s3.access-key": "k",
    "s3.secret-key": "s",
    "fs.s3a.session.token": "t",
    "client.region": "eu-1",
    "s3.path.style.access": "true",
}
HADOOP = {
    "fs.s3a.endpoint": "http://store:7070",
    "fs.s3a.access.key": "k",
    "fs.s3a.secret.key": "s",
    "fs.s3a.session.token": "t",
    "fs.s3a.endpoint.region": "eu-1",
    "fs.s3a.path.style.access": "true",
}
VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("names", [ICEBERG, PAIMON, HADOOP])
def test_every_usual_name_means_the_same(names: dict[str, str]) -> None:
    given = {"warehouse": "s3a://lake/place", **names}
    assert s3_settings(given) == ICEBERG
    assert iceberg_properties(given).items() >= ICEBERG.items()
    found = hadoop_settings(given)
    expected = {name.replace("fs.s3a.", "fs.s3a.bucket.lake."): value for name, value in HADOOP.items()}
    expected["parquet.hadoop.vectored.io.enabled"] = "false"  # such a read does not try again
    assert {name: value for name, value in found.items() if not name.endswith(".impl")} == expected


def test_missing_store_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"warehouse": "s3://lake"}
    assert s3_settings(given) == {}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert s3_settings(given) == {
        "s3.endpoint": "http://127.0.0.1:1",
        "s3.region": "us-east-1",
        "s3.path-style-access": "true",
    }
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://s3.eu-central-1.amazonaws.com")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert s3_settings(given)["s3.path-style-access"] == "false"
    assert s3_settings({**given, "s3.region": "eu-2"})["s3.region"] == "eu-2"


def test_settings_of_another_store_are_unchanged() -> None:
    given = {
        "warehouse": "abfss://lake@account.dfs.core.windows.net/x",
        "fs.azure.account.key": "k",
        "type": "hadoop",
    }
    assert scheme_of(given) == "abfss"
    assert hadoop_settings(given) == {"fs.azure.account.key": "k"}
    assert iceberg_properties(given) == given


@pytest.mark.parametrize(
    ("given", "scheme"),
    [
        ({"warehouse": "/a/folder"}, ""),
        ({"warehouse": "hdfs://node/x"}, "hdfs"),
        ({"type": "rest", "uri": "http://catalog", "s3.endpoint": "http://store"}, "s3"),
        (
            {"type": "rest", "uri": "http://catalog", "warehouse": "name", "fs.s3a.endpoint": "http://store"},
            "s3",
        ),
    ],
)
def test_the_scheme_decides_the_file_system(given: dict[str, str], scheme: str) -> None:
    assert scheme_of(given) == scheme


def test_pyarrow_opens_a_bucket_with_the_settings() -> None:
    files, path = open_files("s3a://lake/place/t", {"warehouse": "s3a://lake/place", **HADOOP})
    assert (files.type_name, path, files.region) == ("s3", "lake/place/t", "eu-1")
