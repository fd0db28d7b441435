"""Object stores as the place of a warehouse: settings by their usual names, and Spark's jars.

An operator writes the settings that the lake's own documentation names, as `datalake.<format>.<name>`, or leaves them
to the environment of the process that reads or writes the lake:

    s3.endpoint, s3.access-key-id, s3.secret-access-key, s3.session-token, s3.region    Iceberg
    s3.endpoint, s3.access-key, s3.secret-key, s3.path.style.access                     Paimon
    fs.s3a.endpoint, fs.s3a.access.key, ... and every other fs.*                        Hadoop
    AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION

Both lakes and Spark's own files use Hadoop's file systems in Spark: S3A for `s3://`, `s3a://` and `s3n://`. Its jars
and those of Amazon's client have 10 MB; `iceberg-aws-bundle` has 67 MB, `paimon-s3` 94 MB, and each serves one lake.
Settings of S3 are set for the warehouse's bucket alone, so that two lakes may be in two stores.

Without Spark, pyiceberg and pyarrow read with the same settings.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from headrace.tablelayer.lake.adapter import LakeError
from headrace.tablelayer.spark.jars import store_jars

S3_SCHEMES = ("s3", "s3a", "s3n")
_S3_FILES = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_PROBES = {
    **dict.fromkeys(S3_SCHEMES, _S3_FILES),
    **dict.fromkeys(("abfs", "abfss"), "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem"),
}
"""The class behind each scheme whose jars are fetched when it is needed."""

# pyiceberg's name: Hadoop's name after `fs.s3a.`, other names, environment variables
_S3_SETTINGS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "s3.endpoint": ("endpoint", (), ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")),
    "s3.region": ("endpoint.region", ("client.region",), ("AWS_REGION", "AWS_DEFAULT_REGION")),
    "s3.access-key-id": ("access.key", ("s3.access-key",), ()),
    "s3.secret-access-key": ("secret.key", ("s3.secret-key",), ()),
    "s3.session-token": ("session.token", ("s3.session.token",), ()),
    "s3.path-style-access": ("path.style.access", ("s3.path.style.access",), ()),
}


def scheme_of(properties: Mapping[str, str]) -> str:
    """Return the scheme of the warehouse; that of its files for a catalog without a warehouse of its own."""
    scheme = urlsplit(properties.get("warehouse", "")).scheme
    if not scheme and any(name.startswith(("s3.", "fs.s3a.")) for name in properties):
        return "s3"
    return scheme


def s3_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of S3 by pyiceberg's names, from whatever names they were given by."""
    found = {}
    for name, (hadoop, others, variables) in _S3_SETTINGS.items():
        values = (properties.get(each) for each in (name, f"fs.s3a.{hadoop}", *others))
        value = next((each for each in values if each), None)
        value = value or next((os.environ[each] for each in variables if os.environ.get(each)), None)
        if value:
            found[name] = value
    if "s3.endpoint" in found:
        # Amazon's own endpoints have names for buckets; most other stores are addressed by path.
        found.setdefault("s3.path-style-access", str("amazonaws.com" not in found["s3.endpoint"]).lower())
        found.setdefault("s3.region", "us-east-1")
    return found


_ONE_READ_AT_A_TIME = {"parquet.hadoop.vectored.io.enabled": "false"}
"""Hadoop's reads of several ranges at once do not try again when an answer of S3 breaks off, as its other reads do."""


def hadoop_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """Return Hadoop's configuration for the warehouse's store."""
    given = {name: value for name, value in properties.items() if name.startswith("fs.")}
    if scheme_of(properties) not in S3_SCHEMES:
        return given
    settings = {f"fs.s3a.{_S3_SETTINGS[name][0]}": value for name, value in s3_settings(properties).items()}
    bucket = urlsplit(properties.get("warehouse", "")).netloc
    own = f"fs.s3a.bucket.{bucket}." if bucket else "fs.s3a."
    return {
        **_ONE_READ_AT_A_TIME,
        **{f"fs.{scheme}.impl": _S3_FILES for scheme in S3_SCHEMES},
        **{
            name.replace("fs.s3a.", own, 1) if not name.startswith("fs.s3a.bucket.") else name: value
            for name, value in {**given, **settings}.items()
        },
    }


def iceberg_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a catalog for pyiceberg, with the names that it knows."""
    if scheme_of(properties) not in S3_SCHEMES:
        return dict(properties)
    return {**properties, **s3_settings(properties)}


def open_files(uri: str, properties: Mapping[str, str]) -> tuple[Any, str]:
    """Return pyarrow's file system of a URI, and the path in it. Raises OSError, ValueError."""
    from pyarrow import fs

    parts = urlsplit(uri)
    if parts.scheme not in S3_SCHEMES:
        return fs.FileSystem.from_uri(uri)  # type: ignore[no-any-return]
    settings = s3_settings(properties)
    endpoint = settings.get("s3.endpoint")
    files = fs.S3FileSystem(
        access_key=settings.get("s3.access-key-id"),
        secret_key=settings.get("s3.secret-access-key"),
        session_token=settings.get("s3.session-token"),
        region=settings.get("s3.region"),
        endpoint_override=endpoint,
        scheme="http" if (endpoint or "").startswith("http://") else "https",
        force_virtual_addressing=settings.get("s3.path-style-access") == "false",
    )
    return files, f"{parts.netloc}{parts.path}"


def prepare(spark: Any, properties: Mapping[str, str]) -> None:
    """Let a session read and write the warehouse's store: fetch and add its jars, and set Hadoop's configuration.

    Raises LakeError for a scheme without a file system.
    """
    scheme = scheme_of(properties)
    if scheme in ("", "file"):
        return
    loader = add_store_jars(spark, scheme)
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    configuration.setClassLoader(loader)
    for name, value in hadoop_settings(properties).items():
        configuration.set(name, value)
    if configuration.get(f"fs.{scheme}.impl") is None and scheme not in ("hdfs", "viewfs", "webhdfs"):
        raise LakeError(
            f"the warehouse {properties.get('warehouse')} has the scheme '{scheme}', and Spark has no file system for"
            f" it: give headrace tier its --packages, and set datalake.<format>.fs.{scheme}.impl to its class"
        )


def add_store_jars(spark: Any, scheme: str) -> Any:
    """Return a class loader that knows the file system of a scheme, whose jars are added if they are missing."""
    loader = spark._jsparkSession.sharedState().jarClassLoader()
    probe = _PROBES.get(scheme)
    if probe is not None and loader.getResource(probe.replace(".", "/") + ".class") is None:
        for jar in store_jars(scheme):
            spark.sql(f"ADD JAR '{jar}'")
    return loader


def create_only(spark: Any, uri: str, text: str) -> bool:
    """Create an object of S3 if it does not exist, in one step; return whether it was created."""
    from py4j.protocol import Py4JJavaError

    hadoop = spark._jvm.org.apache.hadoop.fs
    path = hadoop.Path(uri)
    files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    builder = files.createFile(path).overwrite(False)
    stream = builder.must("fs.option.create.conditional.overwrite", True).build()
    try:
        stream.write(text.encode())
        stream.close()
    except Py4JJavaError:
        if files.exists(path):
            return False  # another writer's, or this one's if only the answer was lost: the caller compares
        raise
    return True
