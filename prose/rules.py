"""The rules of plain English that a program can check. CONTRIBUTING.md has those that it cannot.

No rule looks into code in backticks or the target of a link.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from prose.passages import Kind, Passage

MAX_WORDS = 40
RULES = {
    "opener": "begin with a verb or a noun phrase, not with `What`, `Who`, `Of`, `How`, `So many`, ...",
    "person": "name the broker, client or user instead of `nobody`, `somebody`, `whoever`, `everybody`, ...",
    "headless-who": "name the client or broker: `the client that asks`, not `those who ask`",
    "is-no": "write `is not a` instead of `is no`, or say what is wrong",
    "so-many": "name the number: `at most limit rows`, not `at most so many rows`",
    "what": "name the object: `Return the bytes of the region`, not `Return what the region has`",
    "also-if": "write `even if`, or name the case in a sentence of its own",
    "old-word": "write `again`, `so`, `before`, `of it`, `by which` instead of `anew`, `hence`, ...",
    "long": f"write at most {MAX_WORDS} words in a sentence",
    "backticks": "write `single` backticks in docstrings",
}
"""The remedy of each rule."""


class Finding(NamedTuple):
    """A sentence that breaks a rule, and the line, from 1, on which it begins."""

    line: int
    rule: str
    sentence: str


_HEADLESS = r"(?:What|Whatever|Who|Whom|Whoever|Whose|Which|Of|So (?:long|many|much|far)|How)\b"
_OPENER = re.compile(_HEADLESS)
_DOCSTRING_OPENER = re.compile(rf"{_HEADLESS}|(?:That|Whether (?:who|what)|Why|Until|By|As|Where|When)\b")
_NAME_OPENER = re.compile(rf"(?i:{_HEADLESS}|(?:That|There|They|Them|Those|It|Its|Others|But|Nor|Than)\b)")
_OPENERS = {
    Kind.DOCSTRING: _DOCSTRING_OPENER,
    Kind.NAME: _NAME_OPENER,
    Kind.ASSERTION: re.compile(rf"(?i:{_HEADLESS})"),
}
_THERE_IS = re.compile(r"\bthere (?:\w+ )?(?:is|are|was|were|be|been) no(?:ne)?\b", re.IGNORECASE)
_COMPARED = (
    "longer|more|less|fewer|one|matter|different|worse|better|later|earlier|larger|smaller|bigger|higher|lower|older"
    "|newer|faster|slower|further|deeper|wider|shorter"
)
"""The words behind `is no` that make a comparison of it."""
_PHRASES = {
    "person": re.compile(
        r"\b(?:nobody|somebody|anybody|everybody|no one|someone|anyone|everyone|who(?:m|se)?ever)\b",
        re.IGNORECASE,
    ),
    "headless-who": re.compile(
        r"\b(?:those|others|all|for|by|from|with|that|as|to|in|if|when) who\b", re.IGNORECASE
    ),
    "is-no": re.compile(rf"\b(?:is|are|was|were|be|been) (?:none|no)\b(?! (?:{_COMPARED})\b)"),
    "so-many": re.compile(r"\bso (?:long|many|much)\b(?! (?:as|that)\b)"),
    "also-if": re.compile(r"\balso if\b"),
    "old-word": re.compile(
        r"\b(?:anew|hence(?:forth)?|prior to|thereof|thereby|therein|whence|whereby|wherein)\b",
        re.IGNORECASE,
    ),
}
_WHAT = re.compile(r"(?!Whether)[A-Z][a-z]+ (?:what|whatever|who|whom|whoever)\b")
"""A docstring whose verb has no object: `Return what ...`."""
_CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_EXAMPLE = re.compile(r"^\s*\\b\n(?:.*\S.*\n?)*", re.MULTILINE)
"""A block that typer prints as it is."""
_TARGET = re.compile(r"\]\([^)\s]*\)")
_BREAK = re.compile(
    r"\n\s*(?:\n\s*|(?=[-*] |\d+\. |\||>>>|[^\n]*\S {2,}\S))|(?<=[.!?])[\"')\]*]*\s+(?=[^a-z\s])"
)
_WORD = re.compile(r"\S*\w\S*")
_LEAD = " \n\t-*>\"'([_"


def findings(passage: Passage) -> Iterator[Finding]:
    """Return the sentences of a passage that break a rule."""
    opener = _OPENERS.get(passage.kind, _OPENER)
    for at, sentence, plain in sentences(passage.text):
        line = passage.line + passage.text.count("\n", 0, at)
        said = " ".join(sentence.split())
        if (
            passage.kind is not Kind.HEADING
            and opener.match(plain)
            and not plain.rstrip("\"')").endswith("?")
        ):
            yield Finding(line, "opener", said)
        if passage.kind is Kind.DOCSTRING and opener is _DOCSTRING_OPENER and _WHAT.match(plain):
            yield Finding(line, "what", said)
        for rule, phrase in _PHRASES.items():
            if phrase.search(_THERE_IS.sub("", plain) if rule == "is-no" else plain):
                yield Finding(line, rule, said)
        if len(plain) > 3 * MAX_WORDS and _is_too_long(passage, plain):
            yield Finding(line, "long", said)
        if passage.kind is Kind.DOCSTRING and "``" in sentence:
            yield Finding(line, "backticks", said)
        opener = _OPENER


def _is_too_long(passage: Passage, plain: str) -> bool:
    """Return whether a sentence has too many words. Messages of several lines are scripts and statements."""
    return len(_WORD.findall(plain)) > MAX_WORDS and not (passage.kind is Kind.MESSAGE and "\n" in plain)


def sentences(text: str) -> Iterator[tuple[int, str, str]]:
    """Return where each sentence begins, the sentence, and the sentence with `X` in the place of its code."""
    plain = text
    for code in (_EXAMPLE, _CODE, _TARGET):
        plain = code.sub(lambda found: "X" * len(found[0]), plain)
    at = 0
    for stop, following in [*(each.span() for each in _BREAK.finditer(plain)), (len(text), len(text))]:
        part = plain[at:stop]
        begin = stop - len(part.lstrip(_LEAD))
        if begin < stop:
            yield begin, text[begin:stop], plain[begin:stop]
        at = following
