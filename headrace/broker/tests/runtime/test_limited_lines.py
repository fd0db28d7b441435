"""Lines that clients can cause in the log: a limited number of each kind, and one with the number of omitted lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from headrace.broker.runtime.limited_lines import TEXT_LENGTH_MAX, LimitedLines


class Kept(logging.Handler):
    def __init__(self, level: int = logging.DEBUG) -> None:
        super().__init__(level)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Log:
    def __init__(self) -> None:
        self.now = 100.0
        self.kept, self.warnings = Kept(), Kept(logging.WARNING)
        self.limited = LimitedLines([self.kept, self.warnings], lambda: self.now, lines_max=3)
        self.logger = logging.Logger("test", logging.DEBUG)
        self.logger.addHandler(self.limited)

    @property
    def lines(self) -> list[str]:
        found, self.kept.lines = self.kept.lines, []
        return found


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    made.limited.close()


def test_repeated_log_lines_of_a_kind_are_summarized(log: Log) -> None:
    for number in range(10):
        log.logger.warning("frame %d", number, extra={"kind": "frame"})
        log.logger.info("late %d", number, extra={"kind": "late"})
    assert log.lines == ["frame 0", "late 0", "frame 1", "late 1", "frame 2", "late 2"]
    log.now += 59
    log.limited.sum_up()
    assert log.lines == []
    log.now += 1
    log.limited.sum_up()
    assert log.lines == [
        "7 more lines of this kind (frame) were left out: there were 10 in 60 s",
        "7 more lines of this kind (late) were left out: there were 10 in 60 s",
    ]
    assert log.warnings.lines[-1].startswith("7 more lines of this kind (frame)"), (
        "as loud as what is left out"
    )
    log.now += 1000
    log.limited.sum_up()
    assert log.lines == []


def test_a_new_window_begins_with_the_omitted_lines_of_the_last(log: Log) -> None:
    for _ in range(5):
        log.logger.warning("a", extra={"kind": "a"})
    log.now += 60
    for _ in range(5):
        log.logger.warning("b", extra={"kind": "a"})
    told = "2 more lines of this kind (a) were left out: there were 5 in 60 s"
    assert log.lines == ["a", "a", "a", told, "b", "b", "b"]
    log.limited.close()
    assert log.lines == [told]


def test_lines_without_a_kind_are_limited_by_their_source_line(log: Log) -> None:
    for _ in range(5):
        try:
            raise ValueError("broken")
        except ValueError:
            log.logger.exception("one place")
        log.logger.error("another place")
        log.logger.info("what is done")
        log.logger.debug("for those who look", extra={"kind": "x"})
    lines = log.lines
    assert [lines.count(text) for text in ("one place", "another place", "what is done")] == [3, 3, 5]
    assert lines.count("for those who look") == 5


def test_a_line_has_a_length(log: Log) -> None:
    log.logger.warning("client %r", "c" * 30_000)
    (line,) = log.lines
    assert len(line) <= TEXT_LENGTH_MAX + 3
