"""Code blocks that a test runs: the blocks after a line `<!-- run -->`.

`sh` blocks are commands of a shell, `python` blocks programs of their own, `sql` blocks are given to `headrace sql`.
They are run in the order of the page, in one folder, against one server. `<!-- run: server -->` is the command that
starts it, which goes on; `<!-- run: spark -->` needs Java and takes its time. A `text` block after `<!-- prints -->` is
what the block before it prints; a line `...` in it stands for any lines, and how many spaces there are does not count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLOCK = re.compile(
    r"^<!-- (?P<mark>run(?:: (?P<how>\w+))?|prints) -->\n+```(?P<language>\w+)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A block. `how` is "", "server" or "spark"; `line` its line; `prints` the expected output, or None."""

    language: str
    code: str
    how: str
    line: int
    prints: str | None = None


def blocks_of(text: str) -> list[Block]:
    """Return the blocks in order. Raise ValueError for an expected output without a block before it."""
    found: list[Block] = []
    for match in _BLOCK.finditer(text):
        if match["mark"] == "prints":
            if not found or found[-1].prints is not None:
                raise ValueError("<!-- prints --> without a block before it")
            last = found[-1]
            found[-1] = Block(last.language, last.code, last.how, last.line, match["code"])
        else:
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(match["language"], match["code"], match["how"] or "", line))
    return found


def is_like(printed: str, promised: str) -> bool:
    """Return whether the output is the expected one."""
    pattern = "\n".join(r"(?:.*\n)*?.*" if line == "..." else re.escape(line) for line in _lines(promised))
    return re.fullmatch(pattern, "\n".join(_lines(printed))) is not None


def _lines(text: str) -> list[str]:
    return [re.sub("─+", "─", " ".join(line.split())) for line in text.strip("\n").split("\n")]
