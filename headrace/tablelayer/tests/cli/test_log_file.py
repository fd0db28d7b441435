"""`headrace.log` on a disk without room."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from headrace.tablelayer.cli.log_output import LogFile


class FullStream:
    """A file on a disk that has no room until `free`."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.free = False
        self.text = ""

    def _check(self) -> None:
        if not self.free:
            raise OSError(errno.ENOSPC, "No space left on device")

    def write(self, text: str) -> None:
        self._check()
        self.text += text

    def flush(self) -> None:
        self._check()

    def seek(self, *_: int) -> None:
        self._check()

    def tell(self) -> int:
        return 0

    def close(self) -> None:
        self._check()


def test_without_room_stderr_is_told_once_and_nothing_is_raised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = LogFile(tmp_path / "headrace.log", maxBytes=1000, encoding="utf-8")
    handler.stream.close()
    handler.stream = stream = FullStream()  # type: ignore[assignment]
    record = logging.LogRecord("headrace", logging.ERROR, "x.py", 1, "a line", None, None)
    for _ in range(100):
        handler.handle(record)
    handler.flush()
    assert capsys.readouterr().err == "headrace.log cannot be written: No space left on device\n"
    stream.free = True
    handler.handle(record)
    assert "a line" in stream.text
    stream.free = False
    handler.close()
    assert "Traceback" not in capsys.readouterr().err
