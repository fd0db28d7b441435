"""The search for the jars, and the errors when they are not available. There is no network: the resolver is a fake."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from headrace.tablelayer.spark import ivy
from headrace.tablelayer.spark import jars as jars_module
from headrace.tablelayer.spark.jars import SparkSetupError, java_command, spark_jars

NAMES = [f"{name}-{revision}.jar" for _, name, revision, _ in jars_module._ARTIFACTS]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("HEADRACE_SPARK_JARS", "HEADRACE_MAVEN_ROOT"):
        monkeypatch.delenv(name, raising=False)


def fake_java(folder: Path, version_text: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{version_text}' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    return folder


class FakeResolver:
    """A fake of Ivy that writes the requested jars."""

    def __init__(self, *answers: list[str] | str) -> None:
        self.answers = list(answers)
        self.settings: list[str] = []
        self.wanted: list[str] = []

    def __call__(self, command: list[str], cwd: Path, **_: Any) -> subprocess.CompletedProcess[str]:
        self.settings.append((cwd / "settings.xml").read_text())
        self.wanted.append((cwd / "ivy.xml").read_text())
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            return subprocess.CompletedProcess(command, 1, answer, "")
        (cwd / "jars").mkdir()
        for name in answer:
            (cwd / "jars" / name).write_bytes(b"jar")
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(*answers: list[str] | str) -> FakeResolver:
        fake = FakeResolver(*answers)
        monkeypatch.setattr(jars_module, "java_command", lambda: "java")
        monkeypatch.setattr(jars_module.subprocess, "run", fake)
        return fake

    return install


def test_resolved_once_then_found(resolver: Any, tmp_path: Path) -> None:
    resolver(NAMES)  # a second call of the resolver would fail: it has one answer
    said: list[str] = []
    first = spark_jars(report=said.append)
    assert sorted(jar.name for jar in first) == sorted(NAMES)
    assert all(jar.is_relative_to(tmp_path / "cache" / "headrace") for jar in first)
    assert len(said) == 1
    assert spark_jars(report=said.append) == sorted(first)
    assert len(said) == 1


def test_a_damaged_cache_is_resolved_again(resolver: Any) -> None:
    fake = resolver(NAMES, NAMES)
    damaged = spark_jars()[0]
    damaged.write_bytes(b"")
    again = spark_jars()
    assert sorted(jar.name for jar in again) == sorted(NAMES)
    assert all(jar.stat().st_size for jar in again)
    assert fake.answers == []


def test_ranges_are_tried_when_the_pinned_ones_are_not_there(resolver: Any) -> None:
    fake = resolver(NAMES[:2], NAMES)
    assert len(spark_jars()) == len(NAMES)
    assert "[4.1.0," in fake.wanted[1]
    assert "[4.1.0," not in fake.wanted[0]


def test_a_failed_resolution_leaves_nothing_that_looks_complete(resolver: Any) -> None:
    resolver(NAMES[:2], NAMES[:3], NAMES)
    with pytest.raises(SparkSetupError):
        spark_jars()
    assert len(spark_jars()) == len(NAMES)


@pytest.mark.parametrize(
    ("spoken", "said"),
    [
        ("Server access error: Host repo.invalid not found. url=...", "not reachable"),
        ("java.net.ConnectException: Connection refused", "not reachable"),
        (
            "\t:: org.apache.spark#spark-sql-kafka;9.9: not found",
            "lacks org.apache.spark#spark-sql-kafka;9.9",
        ),
        ("something else", "something else"),
    ],
)
def test_the_reason_is_named_with_the_remedy(resolver: Any, spoken: str, said: str) -> None:
    resolver(spoken, spoken)
    with pytest.raises(SparkSetupError, match="HEADRACE_MAVEN_ROOT") as caught:
        spark_jars()
    assert said in str(caught.value)


def test_a_mirror_replaces_the_default_repository(resolver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MAVEN_ROOT", "file:///mirror/maven2")
    fake = resolver(NAMES)
    spark_jars()
    assert 'root="file:///mirror/maven2/"' in fake.settings[0]


def test_without_a_mirror_no_host_is_named(resolver: Any) -> None:
    fake = resolver(NAMES)
    spark_jars()
    assert "root=" not in fake.settings[0]
    assert "://" not in fake.settings[0]


def test_a_configured_folder_of_jars_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in NAMES[1:]:
        (tmp_path / name).write_bytes(b"jar")
    monkeypatch.setenv("HEADRACE_SPARK_JARS", str(tmp_path))
    with pytest.raises(SparkSetupError, match="spark-sql-kafka"):
        spark_jars()
    (tmp_path / NAMES[0]).write_bytes(b"jar")
    assert len(spark_jars()) == len(NAMES)


def test_a_marker_lists_the_resolved_files(resolver: Any) -> None:
    resolver(NAMES)
    folder = spark_jars()[0].parent
    assert json.loads((folder / "complete.json").read_text()) == dict.fromkeys(sorted(NAMES), 3)


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "21" 2023-09-19', True),
        ('java version "1.8.0_411"', False),
        ('openjdk version "11.0.2"', False),
        ("no such thing", False),
    ],
)
def test_java_must_be_17_or_newer(
    text: str, fine: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", text)))
    if fine:
        assert java_command().endswith("java")
    else:
        with pytest.raises(SparkSetupError, match="needs Java 17"):
            java_command()


def test_no_java_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkSetupError, match="no `java` on the PATH"):
        java_command()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(SparkSetupError, match=f"JAVA_HOME is {tmp_path}{os.sep}gone"):
        java_command()


def test_excluded_artifacts_are_not_fetched(resolver: Any, tmp_path: Path) -> None:
    """Artifacts that are not needed would take long on a slow connection."""
    fake = resolver([])
    wanted, unwanted = ("org", "tools", "4.3"), ("org", 'a&"b')
    ivy.retrieve(
        "java",
        Path("ivy.jar"),
        tmp_path,
        [wanted],
        into="jars",
        cache=tmp_path,
        needs=True,
        without=[unwanted],
    )
    described = ElementTree.fromstring(fake.wanted[0])
    (dependencies,) = described.iter("dependencies")
    assert [(each.tag, each.get("org"), each.get("name", each.get("module"))) for each in dependencies] == [
        ("dependency", *wanted[:2]),
        ("exclude", *unwanted),
    ]
