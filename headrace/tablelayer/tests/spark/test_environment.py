"""The archive of an environment: unpacked elsewhere, it runs this package with the installed ones."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import typer.testing

from headrace.tablelayer.cli.main import app
from headrace.tablelayer.spark import environment
from headrace.tablelayer.spark.environment import write_environment
from headrace.tablelayer.spark.jars import SparkSetupError

LOOK = """
import json, sys
import headrace.tablelayer.spark.jars as jars, own
found = [jars.__file__, own.__file__, sys.prefix, str(jars.CATALOG_FOLDER / jars.CATALOG_JAR)]
try:
    import pyspark
except ModuleNotFoundError:
    found.append("no pyspark")
print(json.dumps(found))
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The site-packages of a small environment, with a package of the user and a pyspark."""
    site = tmp_path / "site"
    for name in ("own", "pyspark", "pyspark-4.1.4.dist-info", "py4j", "own-1.0.dist-info"):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").touch()
    (site / "_editable_impl_headrace.pth").write_text("/elsewhere\n")
    (site / "alone.py").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(site))
    jar = tmp_path / "headrace-spark-4.1.jar"
    jar.write_bytes(b"compiled")
    monkeypatch.setattr(environment, "catalog_jar", lambda: jar)
    monkeypatch.setattr(environment, "_editable", list)
    return site


def test_an_archive_runs_where_it_is_unpacked(tmp_path: Path, installed: Path) -> None:
    archive = tmp_path / "env.tar.gz"
    interpreter = write_environment(archive)
    unpacked = tmp_path / "executor" / "env"
    with tarfile.open(archive) as opened:
        names = opened.getnames()
        opened.extractall(unpacked, filter="fully_trusted")
    done = subprocess.run(
        [unpacked / "bin" / "python", "-c", LOOK],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *places, pyspark = json.loads(done.stdout)
    assert all(place.startswith(str(unpacked)) for place in places), places
    assert pyspark == "no pyspark"
    assert Path(places[-1]).read_bytes() == b"compiled"
    assert (unpacked / "bin" / "python").readlink() == Path(interpreter)
    site = f"lib/python3.{sys.version_info[1]}/site-packages"
    assert f"{site}/alone.py" in names
    assert f"{site}/own-1.0.dist-info/__init__.py" in names
    assert not [name for name in names if "pyspark" in name or "/tests/" in name or name.endswith(".pth")]
    assert len(names) == len(set(names))


def test_a_package_whose_files_are_elsewhere_is_refused(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_editable", lambda: ["headrace", "own"])
    with pytest.raises(SparkSetupError, match="own: installed in editable mode"):
        write_environment(tmp_path / "env.tar.gz")
    assert not list(tmp_path.glob("env*"))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., typer.testing.Result]:
    """Run `headrace spark`, with jars that are not fetched."""
    jars = Path("/cache/kafka-clients-3.9.1.jar"), Path("/cache/headrace-spark-4.1.jar")
    monkeypatch.setattr("headrace.tablelayer.spark.jars.spark_jars", lambda report: [jars[0]])
    monkeypatch.setattr("headrace.tablelayer.spark.jars.catalog_jar", lambda report: jars[1])
    return lambda *words: typer.testing.CliRunner().invoke(app, ["spark", *words])


def test_settings_are_lines_of_the_file_of_defaults(command: Callable[..., typer.testing.Result]) -> None:
    lines = command("conf", "--server", "h:1").stdout.splitlines()
    assert "spark.jars /cache/kafka-clients-3.9.1.jar,/cache/headrace-spark-4.1.jar" in lines
    assert "spark.sql.catalog.headrace headrace.spark.HeadraceCatalog" in lines
    assert "spark.headrace.bootstrap.servers h:1" in lines
    assert not [line for line in lines if "archives" in line or "pyspark.python" in line]


def test_settings_are_arguments_of_spark_submit(command: Callable[..., typer.testing.Result]) -> None:
    words = command("conf", "--format", "submit", "--archive", "s3://b/env.tar.gz").stdout.split()
    given = dict(pair.split("=", 1) for pair in words[1::2])
    assert set(words[::2]) == {"--conf"}
    assert given["spark.archives"] == "s3://b/env.tar.gz#env"
    assert given["spark.pyspark.python"] == "./env/bin/python"
    assert given["spark.pyspark.driver.python"] == sys.executable


def test_an_archive_that_spark_would_not_unpack_is_refused(
    command: Callable[..., typer.testing.Result],
) -> None:
    done = command("env", "--out", "env.zip")
    assert done.exit_code == 1
    assert "has to end in .tar.gz" in done.output
