"""Parse `docs/internals/walks.md` into a form that can be compared with the traced calls.

A heading `## <request>` with numbered steps (a path and a function in backticks, then a text) is a walk. The section
of numbers has a row `| <request> | files | changes |` for each; that of helpers names files in backticks. The picture
is mermaid: nodes `name["path.py"]`, arrows `one --> other` a line each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from headrace.tablelayer.tests.walks.trace import Call

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "internals" / "walks.md"
HELPERS = "Passed on the way"
_HEADING = re.compile(r"^## (.+)$")
_STEP = re.compile(r"^\d+\. `([^`]+\.py)` `([^`]+)`:")
_NUMBERED = re.compile(r"^\d+\. ")
_ROW = re.compile(r"^\| ([^|]+) \| (\d+) \| (\d+) \|$")
_FILE = re.compile(r"`([^`]+\.py)`")
_NODE = re.compile(r'^ +(\w+)\["([^"]+\.py)"\]$')
_ARROW = re.compile(r"^ +(\w+) --(?: .+ --)?> (\w+)$")

Step = tuple[str, str]


@dataclass(frozen=True)
class Length:
    files: int
    changes: int


@dataclass
class Document:
    """The document. `arrows` are pairs of files, `named` all named files, `unread` lines that look like steps and
    are not.
    """

    walks: dict[str, list[Step]] = field(default_factory=dict)
    lengths: dict[str, Length] = field(default_factory=dict)
    helpers: list[str] = field(default_factory=list)
    arrows: list[tuple[str, str]] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    unread: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Document:
        document, heading, nodes = cls(), "", dict[str, str]()
        for line in text.splitlines():
            document.named.update(_FILE.findall(line))
            if found := _HEADING.match(line):
                heading = found[1]
            elif found := _STEP.match(line):
                document.walks.setdefault(heading, []).append((found[1], found[2]))
            elif _NUMBERED.match(line):
                document.unread.append(line)
            elif found := _ROW.match(line):
                document.lengths[found[1]] = Length(int(found[2]), int(found[3]))
            elif heading == HELPERS:
                document.helpers += _FILE.findall(line)
            elif found := _NODE.match(line):
                nodes[found[1]] = found[2]
            elif (found := _ARROW.match(line)) and found[2] in nodes:
                document.arrows.append((nodes[found[1]], nodes[found[2]]))
        return document


def length(calls: Sequence[Call]) -> Length:
    by_thread = sorted(calls, key=lambda call: call.thread)  # stable: the order within each thread
    return Length(
        len({call.path for call in calls}),
        sum(before.path != after.path for before, after in pairwise(by_thread)),
    )


def first_false_step(steps: Sequence[Step], calls: Sequence[Call]) -> Step | None:
    """Return the first step that is not called after all earlier ones. Resuming a function does not count as a call."""
    called = iter([(call.path, call.function) for call in calls if not call.resumed])
    return next((step for step in steps if step not in called), None)


def not_told(document: Document, name: str, calls: Sequence[Call]) -> list[str]:
    """Return files in the trace that are neither in a step of this walk nor among the helpers."""
    told = {path for path, _ in document.walks[name]} | set(document.helpers)
    return sorted({call.path for call in calls} - told)


def arrows_not_walked(document: Document) -> list[tuple[str, str]]:
    """Arrows of the picture that no walk goes, from a step in the one file to a later one in the other."""
    walked = set()
    for steps in document.walks.values():
        for index, (path, _) in enumerate(steps):
            walked |= {(path, later) for later, _ in steps[index + 1 :]}
    return [arrow for arrow in document.arrows if arrow not in walked]


def renewed(text: str, lengths: Mapping[str, Length]) -> str:
    """The document with these numbers in the place of its own, and the steps of each walk numbered from 1."""
    lines = []
    number = 0
    for line in text.splitlines():
        if _HEADING.match(line):
            number = 0
        if _NUMBERED.match(line):
            number += 1
            line = _NUMBERED.sub(f"{number}. ", line)
        elif (found := _ROW.match(line)) and found[1] in lengths:
            now = lengths[found[1]]
            line = f"| {found[1]} | {now.files} | {now.changes} |"
        lines.append(f"{line}\n")
    return "".join(lines)
