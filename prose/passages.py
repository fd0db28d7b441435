"""Find the passages of prose in a file: docstrings, comments and messages of programs, paragraphs of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

_SCRIPTS = (".js", ".java", ".html")
_SETTINGS = (".toml", ".yml", ".yaml")
SUFFIXES = (".py", ".md", *_SCRIPTS, *_SETTINGS)


class Kind(StrEnum):
    """The kinds of passage. A message is a string literal of at least three words outside of tests.

    A name is that of a test, in words: `test_r3_1_a_repeat_has_no_effect` is "a repeat has no effect". An assertion is
    the message of an `assert` that ends its line.
    """

    NAME = "name"
    ASSERTION = "assertion"
    DOCSTRING = "docstring"
    COMMENT = "comment"
    MESSAGE = "message"
    HEADING = "heading"
    MARKDOWN = "markdown"


class Passage(NamedTuple):
    """A text and the line, from 1, on which it begins."""

    kind: Kind
    line: int
    text: str


def passages_of(path: Path) -> Iterator[Passage]:
    """Return the passages of a file of one of the kinds in `SUFFIXES`, in their order."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return python(text, messages=not _is_test(path))
    if path.suffix == ".md":
        return markdown(text)
    return scripts(text, messages=not _is_test(path)) if path.suffix in _SCRIPTS else settings(text)


def _is_test(path: Path) -> bool:
    """Return whether the string literals of a file are data of tests."""
    return "tests" in path.parts or "compat-tests" in path.parts or path.name == "conftest.py"


# -- Python: one regular expression over the text takes a fifth of the time of `tokenize` or `ast`.

_TOKEN = re.compile(
    r"""(?P<prefix>(?<!\w)[rRbBfFuU]{1,2})?
        (?:\"{3}(?P<long>[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*)\"{3}
          |'{3}(?P<long2>[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*)'{3}
          |"(?P<short>[^"\\\n]*(?:\\.[^"\\\n]*)*)"
          |'(?P<short2>[^'\\\n]*(?:\\.[^'\\\n]*)*)')
       |\#:?(?P<comment>[^\n]*)""",
    re.VERBOSE | re.DOTALL,
)
_PRAGMA = re.compile(r"\s*(?:noqa|type:|fmt:|pragma|!|--)")
_GOES_ON = tuple("([{,=+%:")
_TEST_NAME = re.compile(r"^ *(?:async )?def test_(?:(?:cve_|[a-z]{1,4})\d+_(?:\d+_)*)*(\w+)", re.MULTILINE)
_ASSERTION = re.compile(r"""^ *(?:assert .*|\)), f?"([^"\n]*)"$""", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "\n": ""}


def python(text: str, *, messages: bool = True) -> Iterator[Passage]:
    """Return the passages of Python source. Adjacent literals make one message, comments of adjacent lines one comment.

    A placeholder of an f-string reads `X`. Names of tests and, without `messages`, those of assertions come last.
    """
    comment, literal = _Joined(Kind.COMMENT), _Joined(Kind.MESSAGE)
    line, at = 1, 0
    for found in _TOKEN.finditer(text):
        start, end = found.span()
        between = text[at:start]
        line += between.count("\n")
        body = found[found.lastgroup or 0]
        apart = bool(between.strip())
        if apart:
            yield from literal.take()
        if found.lastgroup == "comment":
            if apart or between.count("\n") != 1:
                yield from comment.take()
            if not _PRAGMA.match(body):
                comment.add(line, body.strip() + "\n")
        elif found.lastgroup in ("long", "long2") and _is_statement(text, start):
            yield from comment.take()
            yield Passage(Kind.DOCSTRING, line, body)
        else:
            yield from comment.take()
            if messages and "b" not in (found["prefix"] or "").lower():
                literal.add(line, _plain(body, found["prefix"] or ""))
        line += text.count("\n", start, end)
        at = end
    yield from comment.take()
    yield from literal.take()
    for found in _TEST_NAME.finditer(text):
        yield Passage(Kind.NAME, 1 + text.count("\n", 0, found.start(1)), found[1].replace("_", " "))
    for found in () if messages else _ASSERTION.finditer(text):
        yield Passage(Kind.ASSERTION, 1 + text.count("\n", 0, found.start(1)), _plain(found[1], "f"))


def _is_statement(text: str, start: int) -> bool:
    """Return whether the string at `start` stands alone, as docstrings do."""
    newline = text.rfind("\n", 0, start)
    if text[newline + 1 : start].strip():
        return False
    before = text[max(0, newline - 300) : max(0, newline)].rstrip()
    return before.endswith(":") or not before.endswith(_GOES_ON)


class _Joined:
    """Pieces of text that make one passage."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._line = 0
        self._pieces: list[str] = []

    def add(self, line: int, piece: str) -> None:
        if not self._pieces:
            self._line = line
        self._pieces.append(piece)

    def take(self) -> Iterator[Passage]:
        if not self._pieces:
            return
        text = "".join(self._pieces)
        self._pieces = []
        if self._kind is Kind.COMMENT or len(text.split()) >= 3:
            yield Passage(self._kind, self._line, text)


def _plain(body: str, prefix: str) -> str:
    """Return the text that a literal stands for."""
    if "f" in prefix.lower():
        while (shorter := _PLACEHOLDER.sub("X", body)) != body:
            body = shorter
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), body) if "\\" in body else body


# -- programs in other languages, and settings

_SCRIPT_TOKEN = re.compile(
    r"""//(?P<line>[^\n]*)
       |/\*\**(?P<block>.*?)\*/
       |"(?P<double>[^"\\\n]*(?:\\.[^"\\\n]*)*)"
       |'(?P<single>[^'\\\n]*(?:\\.[^'\\\n]*)*)'
       |`(?P<template>[^`\\]*(?:\\.[^`\\]*)*)`
       |(?<=>)(?P<text>[^<>"'`{}]+)(?=</)""",
    re.VERBOSE | re.DOTALL,
)
_STAR = re.compile(r"^ *\* ?", re.MULTILINE)
_SOURCE = re.compile(r"'''.*?'''", re.DOTALL)
_SETTING = re.compile(
    r"""(?:^|[ ])\#[ ](?P<comment>[^\n]*)
       |^[ -]*(?:promise|description|summary|title)[ ]*[:=][ ]*["']?(?P<message>[^\n]*?)["']?$""",
    re.VERBOSE | re.MULTILINE,
)


def scripts(text: str, *, messages: bool = True) -> Iterator[Passage]:
    """Return the comments and texts of JavaScript, Java and HTML."""
    for found in _SCRIPT_TOKEN.finditer(text):
        group = found.lastgroup or ""
        said = _STAR.sub("", found[group]).strip()
        is_comment = group in ("line", "block")
        if is_comment or (messages and len(said.split()) >= 3):
            yield Passage(
                Kind.COMMENT if is_comment else Kind.MESSAGE, 1 + text.count("\n", 0, found.start()), said
            )


def settings(text: str) -> Iterator[Passage]:
    """Return the comments, promises and descriptions of TOML and YAML."""
    text = _SOURCE.sub(_blank, text)
    for found in _SETTING.finditer(text):
        kind = Kind.COMMENT if found.lastgroup == "comment" else Kind.MESSAGE
        yield Passage(
            kind, 1 + text.count("\n", 0, found.start(found.lastgroup or 0)), found[found.lastgroup or 0]
        )


# -- Markdown

_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_REMARK = re.compile(r"<!--.*?-->", re.DOTALL)
_BLOCK_END = re.compile(r"\n *(?:\n|(?=[-*+] |\d+\. |\||>|#)|(?=#))")
_CELL_END = re.compile(r"(?<!\\)\|")


def markdown(text: str) -> Iterator[Passage]:
    """Return headings, paragraphs, items of lists and cells of tables, without blocks of code."""
    text = _REMARK.sub(_blank, _FENCE.sub(_blank, text))
    line = at = 0
    for end, following in [*(each.span() for each in _BLOCK_END.finditer(text)), (len(text), len(text))]:
        block = text[at:end]
        begin = 1 + line + block[: len(block) - len(block.lstrip())].count("\n")
        block = block.strip()
        if block.startswith("#"):
            heading, _, block = block.partition("\n")
            yield Passage(Kind.HEADING, begin, heading.strip("# "))
            begin += 1
        for part in _CELL_END.split(block) if block.startswith("|") else [block]:
            if re.search(r"\w", part):
                yield Passage(Kind.MARKDOWN, begin, part.strip())
        line += text.count("\n", at, following)
        at = following


def _blank(found: re.Match[str]) -> str:
    """Return as many empty lines as were found."""
    return "\n" * found[0].count("\n")
