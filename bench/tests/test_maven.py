"""Folders of the user's cache that several processes may make at the same time."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from bench import maven
from bench.maven import made_once
from headrace.tablelayer.spark.ivy import one_at_a_time


def test_a_folder_is_made_by_one_process_while_another_waits(tmp_path: Path, monkeypatch) -> None:
    """Locks of files hold between two open files, so a thread stands for the other process."""
    folder, made, waits = tmp_path / "apps" / "built", [], threading.Event()
    other = threading.Thread(target=lambda: made_once(folder, make))

    def take(path: Path) -> AbstractContextManager[None]:
        if made:
            waits.set()
        return one_at_a_time(path)

    def make() -> None:
        made.append(folder)
        if len(made) == 1:
            other.start()
            assert waits.wait(10)

    monkeypatch.setattr(maven, "one_at_a_time", take)
    assert made_once(folder, make) == folder
    other.join()
    assert made == [folder]


def test_a_failed_attempt_is_begun_again_with_an_empty_folder(tmp_path: Path) -> None:
    folder = tmp_path / "built"

    def fail() -> None:
        (folder / "half").touch()
        raise RuntimeError("no network")

    with pytest.raises(RuntimeError, match="no network"):
        made_once(folder, fail)
    assert made_once(folder, (folder / "whole").touch) == folder
    assert not (folder / "half").exists()
    assert made_once(folder, fail) == folder
    assert (folder / "whole").exists()
