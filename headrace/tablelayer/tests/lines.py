"""Count the lines of Headrace's own code that run, and find those that run once for each row."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = str(Path(__file__).parents[2])

Counts = Counter[tuple[CodeType, int]]


class Lines:
    """Counts the lines that run in Headrace's own functions, in this thread and in all `threads` that start from now
    on.
    """

    def __init__(self, *, threads: bool = True) -> None:
        self.counts: Counts = Counter()
        self._threads = threads

    def __enter__(self) -> Lines:
        if self._threads:
            threading.settrace(self._called)
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def taken(self) -> Counts:
        """Return the counts since the last call."""
        counts, self.counts = self.counts, Counter()
        return counts

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        return self._line if name.startswith(PACKAGE) and "/tests/" not in name else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.counts[frame.f_code, frame.f_lineno] += 1
        return self._line


def check_per_row(
    few: Mapping[str, Counts], many: Mapping[str, Counts], more_rows: int, allowed: Mapping[str, str]
) -> None:
    """Fail for each line that ran at least half as many times more as there were `more_rows`, and for each allowed
    function that has no such line.
    """
    per_row = {
        f"{view}: {code.co_qualname}, {Path(code.co_filename).name}:{line}"
        for view, lines in many.items()
        for (code, line), times in lines.items()
        if times - few[view][code, line] >= more_rows // 2
    }
    reasons = {each: [name for name in allowed if f": {name}" in each] for each in per_row}
    wrong = sorted(each for each, names in reasons.items() if not names)
    assert not wrong, "these lines run once for each row:\n" + "\n".join(wrong)
    unneeded = set(allowed) - {name for names in reasons.values() for name in names}
    assert not unneeded, f"a reason is not needed any more: {sorted(unneeded)}"
