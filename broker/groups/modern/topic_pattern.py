"""Regular expressions over topic names, in RE2's dialect and in linear time.

Members subscribe by patterns that strangers write, so a pattern must never take more than a fixed time per
character of a name. Python's `re` backtracks and cannot promise that. Here a pattern becomes a
nondeterministic automaton, run as a deterministic one whose states are made when they are first reached. As
in Kafka the whole name has to match.

Understood is RE2's syntax: alternation, groups (also named and non-capturing), flags `i`, `m`, `s` and `U`,
greedy and lazy repetition (alike when the whole name has to match), classes with ranges, negation, Perl, ASCII and
Unicode categories, `.`, `^ $ \\A \\z \\b \\B`, `\\Q...\\E` and escapes. What RE2 does not have (look-around,
back-references, possessive repetition) is refused, as are repetitions over 1,000 and automata over
`STATES_MAX` states. Topic names are made of 65 characters, so a class is a set of those.

Sources: RE2's syntax page (google/re2, doc/syntax.txt); R. Cox, "Regular Expression Matching Can Be Simple
And Fast".
"""

from __future__ import annotations

import string
import threading
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

ALPHABET = frozenset(string.ascii_letters + string.digits + "._-")
PATTERN_LENGTH_MAX = 4_096
STATES_MAX = 10_000
DFA_STATES_MAX = 2_000
"""Beyond that the deterministic states are forgotten and made anew: a bound on memory, not on time."""
REPEAT_MAX = 1_000
DEPTH_MAX = 100

_WORD = frozenset(string.ascii_letters + string.digits + "_")
_PERL = {"d": frozenset(string.digits), "w": _WORD, "s": frozenset("\t\n\f\r ")}
_POSIX = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "ascii": "".join(map(chr, range(128))),
    "blank": "\t ",
    "cntrl": "".join(map(chr, range(32))) + "\x7f",
    "digit": string.digits,
    "graph": "".join(map(chr, range(33, 127))),
    "lower": string.ascii_lowercase,
    "print": "".join(map(chr, range(32, 127))),
    "punct": string.punctuation,
    "space": "\t\n\v\f\r ",
    "upper": string.ascii_uppercase,
    "word": string.ascii_letters + string.digits + "_",
    "xdigit": string.hexdigits,
}
_ESCAPES = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_KINDS = {"C": "cfnos", "L": "lmotu", "M": "cen", "N": "dlo", "P": "cdefios", "S": "ckmo", "Z": "lps"}
_CATEGORIES = frozenset(group + kind for group, kinds in _KINDS.items() for kind in ("", *kinds))

# Assertions: what lies before and after the position.
_BEGIN, _END, _BOUNDARY, _NO_BOUNDARY = range(4)


class PatternError(ValueError):
    """The pattern is not one; says what is wrong and where."""


# A syntax tree of tuples: ("set", frozenset) ("assert", kind) ("cat", [..]) ("alt", [..])
# ("repeat", node, low, high or None) .
Node = tuple[object, ...]
_EMPTY: Node = ("cat", ())


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.position = 0
        self.depth = 0
        self.names: set[str] = set()

    def fail(self, problem: str) -> PatternError:
        return PatternError(f"{problem} at character {self.position}")

    def peek(self) -> str:
        return self.text[self.position] if self.position < len(self.text) else ""

    def take(self, token: str) -> bool:
        if self.text.startswith(token, self.position):
            self.position += len(token)
            return True
        return False

    def parse(self) -> Node:
        node = self.alternation(frozenset())
        if self.position < len(self.text):
            raise self.fail("an unexpected )")
        return node

    def alternation(self, flags: frozenset[str]) -> Node:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise self.fail(f"groups nested more than {DEPTH_MAX} deep")
        branches: list[Node] = []
        items: list[Node] = []
        while self.peek() not in ("", ")"):
            if self.take("|"):
                branches.append(("cat", tuple(items)))
                items = []
            elif (
                self.text.startswith("(?", self.position) and (changed := self.flag_group(flags)) is not None
            ):
                flags = changed
            else:
                items.append(self.repetition(flags))
        self.depth -= 1
        branches.append(("cat", tuple(items)))
        return branches[0] if len(branches) == 1 else ("alt", tuple(branches))

    def flag_group(self, flags: frozenset[str]) -> frozenset[str] | None:
        """`(?flags)`, which holds to the end of the group; None if this is another kind of group."""
        end = self.position + 2
        while end < len(self.text) and self.text[end] in "imsU-":
            end += 1
        if end < len(self.text) and self.text[end] == ")" and end > self.position + 2:
            changed = self.changed_flags(flags, self.text[self.position + 2 : end])
            self.position = end + 1
            return changed
        return None

    def changed_flags(self, flags: frozenset[str], text: str) -> frozenset[str]:
        on, minus, off = text.partition("-")
        if "-" in off or (minus and not off):
            raise self.fail(f"bad flags {text!r}")
        return (flags | set(on)) - set(off)

    def repetition(self, flags: frozenset[str]) -> Node:
        start = self.position
        node = self.atom(flags)
        repeated = False
        while True:
            here = self.position
            if self.take("*"):
                low, high = 0, None
            elif self.take("+"):
                low, high = 1, None
            elif self.take("?"):
                low, high = 0, 1
            elif (bounds := self.bounds()) is not None:
                low, high = bounds
            else:
                return node
            if repeated:
                self.position = here
                raise self.fail("a repetition of a repetition")
            if self.position - start > 0 and node[0] == "assert" and (high is None or high > 1):
                low, high = min(low, 1), 1  # an assertion repeated says no more than said once
            self.take("?")  # lazy: the same names match
            node, repeated = ("repeat", node, low, high), True

    def bounds(self) -> tuple[int, int | None] | None:
        """`{n}`, `{n,}` or `{n,m}`; anything else with a brace is plain text, as in RE2."""
        end = self.text.find("}", self.position)
        if self.peek() != "{" or end < 0:
            return None
        low, comma, high = self.text[self.position + 1 : end].partition(",")
        if not (low.isascii() and low.isdigit()) or (high and not (high.isascii() and high.isdigit())):
            return None
        if len(low) > 4 or len(high) > 4 or int(low) > REPEAT_MAX or int(high or 0) > REPEAT_MAX:
            raise self.fail(f"a repetition over {REPEAT_MAX}")
        bounds = int(low), (int(high) if high else None) if comma else int(low)
        if bounds[1] is not None and bounds[0] > bounds[1]:
            raise self.fail("a repetition whose least is more than its most")
        self.position = end + 1
        return bounds

    def atom(self, flags: frozenset[str]) -> Node:
        char = self.peek()
        if char == "(":
            return self.group(flags)
        if char == "[":
            return ("set", self.character_class(flags))
        if char == "\\":
            return self.escape(flags)
        if char in "*+?" or self.bounds() is not None:
            raise self.fail(f"nothing to repeat with {char!r}")
        self.position += 1
        if char == ".":
            return ("set", ALPHABET)
        # Names have no line breaks: with and without the flag m, these are the ends of the name.
        if char == "^":
            return ("assert", _BEGIN)
        if char == "$":
            return ("assert", _END)
        return ("set", _folded(frozenset(char), flags))

    def group(self, flags: frozenset[str]) -> Node:
        self.position += 1
        if self.take("?"):
            if self.take("P<") or (self.peek() == "<" and self.text[self.position + 1 :][:1] not in "=!"):
                self.take("<")
                end = self.text.find(">", self.position)
                name = self.text[self.position : end] if end >= 0 else ""
                if not name or not all(one in _WORD for one in name):
                    raise self.fail("a group with a bad name")
                if name in self.names:
                    raise self.fail(f"a second group named {name!r}")
                self.names.add(name)
                self.position = end + 1
            else:
                end = self.position
                while end < len(self.text) and self.text[end] in "imsU-":
                    end += 1
                if end >= len(self.text) or self.text[end] != ":":
                    raise self.fail("a kind of group that is not supported, (?" + self.peek())
                if end > self.position:
                    flags = self.changed_flags(flags, self.text[self.position : end])
                self.position = end + 1
        node = self.alternation(flags)
        if not self.take(")"):
            raise self.fail("a missing )")
        return node

    def escape(self, flags: frozenset[str]) -> Node:
        self.position += 1
        char = self.peek()
        if char == "":
            raise self.fail("a trailing backslash")
        if char == "Q":
            end = self.text.find("\\E", self.position)
            literal = self.text[self.position + 1 :] if end < 0 else self.text[self.position + 1 : end]
            self.position = len(self.text) if end < 0 else end + 2
            return ("cat", tuple(("set", _folded(frozenset(one), flags)) for one in literal))
        assertions = {"A": _BEGIN, "z": _END, "b": _BOUNDARY, "B": _NO_BOUNDARY}
        if char in assertions:
            self.position += 1
            return ("assert", assertions[char])
        known = self.class_escape(flags)
        return ("set", known if known is not None else _folded(frozenset(self.character_escape()), flags))

    def class_escape(self, flags: frozenset[str]) -> frozenset[str] | None:
        r"""`\d \pN \P{Lu}` and the like, behind the backslash; None for another escape."""
        char = self.peek()
        if char.lower() in _PERL and char:
            self.position += 1
            chars = _PERL[char.lower()]
            return chars if char.islower() else ALPHABET - chars
        if char not in ("p", "P"):
            return None
        self.position += 1
        if self.take("{"):
            end = self.text.find("}", self.position)
            name = self.text[self.position : end] if end >= 0 else ""
            self.position = end + 1 if end >= 0 else self.position
        else:
            name = self.peek()
            self.position += 1
        negated = (char == "P") != name.startswith("^")
        category = _category(name.removeprefix("^"))
        if category is None:
            raise self.fail(f"an unknown category {name!r}")
        chars = _folded(category, flags)
        return ALPHABET - chars if negated else chars

    def character_escape(self) -> str:
        """One character behind the backslash."""
        char = self.peek()
        self.position += 1
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char == "x":
            if self.take("{"):
                end = self.text.find("}", self.position)
                digits = self.text[self.position : end] if end >= 0 else ""
                self.position = end + 1
            else:
                digits = self.text[self.position : self.position + 2]
                self.position += 2
            if not 0 < len(digits) <= 6 or set(digits) - set(string.hexdigits) or int(digits, 16) > 0x10FFFF:
                raise self.fail("a bad hexadecimal escape")
            return chr(int(digits, 16))
        if char in "01234567":
            digits = char
            while len(digits) < 3 and self.peek() in tuple("01234567"):
                digits += self.peek()
                self.position += 1
            if char != "0" and len(digits) < 2:
                raise self.fail(f"the back-reference \\{char}, which is not supported,")
            return chr(int(digits, 8))
        if (char in _WORD and char != "_") or ord(char) >= 128:
            raise self.fail(f"the unknown escape \\{char}")
        return char

    def character_class(self, flags: frozenset[str]) -> frozenset[str]:
        self.position += 1
        negated = self.take("^")
        chars: set[str] = set()
        first = True
        while first or self.peek() != "]":
            if self.peek() == "":
                raise self.fail("a missing ]")
            first = False
            if self.take("[:"):
                end = self.text.find(":]", self.position)
                name = self.text[self.position : end] if end >= 0 else ""
                if name.removeprefix("^") not in _POSIX:
                    raise self.fail(f"an unknown class [:{name}:]")
                self.position = end + 2
                found = frozenset(_POSIX[name.removeprefix("^")])
                chars |= ALPHABET - found if name.startswith("^") else found
                continue
            if self.peek() == "\\":
                self.position += 1
                if self.peek() == "":
                    raise self.fail("a trailing backslash")
                known = self.class_escape(flags)
                if known is not None:
                    chars |= known
                    continue
                low = self.character_escape()
            else:
                low = self.peek()
                self.position += 1
            high = low
            if self.peek() == "-" and self.text[self.position + 1 :][:1] not in ("]", ""):
                self.position += 1
                if self.take("\\"):
                    if self.peek() == "":
                        raise self.fail("a trailing backslash")
                    high = self.character_escape()
                else:
                    high = self.peek()
                    self.position += 1
                if high < low:
                    raise self.fail("a range that ends before it begins")
            chars |= _folded(frozenset(char for char in ALPHABET if low <= char <= high), flags)
            if "i" in flags:
                chars |= {
                    char for char in ALPHABET if low <= char.upper() <= high or low <= char.lower() <= high
                }
        self.position += 1
        return ALPHABET - chars if negated else frozenset(chars & ALPHABET)


def _folded(chars: frozenset[str], flags: frozenset[str]) -> frozenset[str]:
    """The characters of names among `chars`; with the flag `i` in either case."""
    if "i" in flags:
        cases = {char.upper() for char in chars} | {char.lower() for char in chars}
        chars = frozenset(char for char in ALPHABET if char.upper() in cases or char.lower() in cases) | chars
    return chars & ALPHABET


def _category(name: str) -> frozenset[str] | None:
    """The characters of a Unicode category or of the scripts that topic names can have; None if unknown."""
    if name == "Any":
        return ALPHABET
    if name in _CATEGORIES:
        return frozenset(char for char in ALPHABET if unicodedata.category(char).startswith(name))
    if name == "Latin":
        return frozenset(string.ascii_letters)
    if name == "Common":
        return ALPHABET - frozenset(string.ascii_letters)
    if name in ("Greek", "Cyrillic", "Han", "Arabic", "Hebrew", "Hiragana", "Katakana", "Thai", "Hangul"):
        return frozenset()
    return None


class TopicPattern:
    """A compiled pattern. Each character of a name costs one look-up once the automaton is warm."""

    def __init__(self, node: Node) -> None:
        self._chars: list[frozenset[str] | None] = []
        self._kinds: list[int] = []
        self._next: list[tuple[int, ...]] = []
        self._lock = threading.Lock()
        self._accept = self._state(None, -1, ())
        self._start = self._build(node, self._accept)
        self._reset()

    # States: `chars` a set to consume, or an assertion `kind` to pass, or (neither) a fork.

    def _state(self, chars: frozenset[str] | None, kind: int, following: tuple[int, ...]) -> int:
        if len(self._next) >= STATES_MAX:
            raise PatternError(f"it needs more than {STATES_MAX} states")
        self._chars.append(chars)
        self._kinds.append(kind)
        self._next.append(following)
        return len(self._next) - 1

    def _build(self, node: Node, after: int) -> int:
        """States for `node` that lead to `after`; gives the first."""
        match node:
            case ("set", chars):
                return self._state(chars, -1, (after,))  # type: ignore[arg-type]
            case ("assert", kind):
                return self._state(None, kind, (after,))  # type: ignore[arg-type]
            case ("cat", items):
                for item in reversed(items):  # type: ignore[call-overload]
                    after = self._build(item, after)
                return after
            case ("alt", branches):
                return self._state(None, -1, tuple(self._build(branch, after) for branch in branches))  # type: ignore[attr-defined]
            case ("repeat", inner, int(low), high):
                return self._repeat(inner, low, high, after)  # type: ignore[arg-type]
        raise AssertionError(node)

    def _repeat(self, inner: Node, low: int, high: int | None, after: int) -> int:
        if high is None:
            loop = self._state(None, -1, ())
            self._next[loop] = (self._build(inner, loop), after)
            after = loop
        else:
            skip = after
            for _ in range(high - low):
                after = self._state(None, -1, (self._build(inner, after), skip))
        for _ in range(low):
            after = self._build(inner, after)
        return after

    # A deterministic state: the set of states it stands for, whether a word character came last, and whether
    # nothing has come yet.

    def _reset(self) -> None:
        self._numbers: dict[tuple[frozenset[int], bool, bool], int] = {}
        self._sets: list[tuple[frozenset[int], bool, bool]] = []
        self._moves: list[dict[str, int]] = []
        self._finals: list[bool | None] = []
        self._number((frozenset((self._start,)), False, True))

    def _number(self, key: tuple[frozenset[int], bool, bool]) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._sets)
            self._sets.append(key)
            self._moves.append({})
            self._finals.append(None)
        return number

    def _closure(self, number: int, char: str | None) -> set[int]:
        """All states that are reached without consuming, before `char` (None: the end of the name)."""
        states, after_word, at_begin = self._sets[number]
        at_boundary = after_word != (char is not None and char in _WORD)
        holds = {
            -1: True,
            _BEGIN: at_begin,
            _END: char is None,
            _BOUNDARY: at_boundary,
            _NO_BOUNDARY: not at_boundary,
        }
        found: set[int] = set()
        stack = list(states)
        while stack:
            state = stack.pop()
            if state in found:
                continue
            found.add(state)
            if self._chars[state] is None and holds[self._kinds[state]]:
                stack.extend(self._next[state])
        return found

    def _move(self, number: int, char: str) -> int:
        reached = frozenset(
            self._next[state][0]
            for state in self._closure(number, char)
            if (chars := self._chars[state]) is not None and char in chars
        )
        key = (reached, char in _WORD, False)
        if len(self._sets) >= DFA_STATES_MAX:
            self._reset()
            return self._number(key)
        following = self._moves[number][char] = self._number(key)
        return following

    def matches(self, name: str) -> bool:
        """Whether the whole of `name` matches."""
        number = 0
        for char in name:
            following = self._moves[number].get(char)
            number = self._move(number, char) if following is None else following
            if not self._sets[number][0]:
                return False
        final = self._finals[number]
        if final is None:
            final = self._finals[number] = self._accept in self._closure(number, None)
        return final

    def matching(self, names: Iterable[str]) -> frozenset[str]:
        """Those of `names` that match. May be called in any thread."""
        with self._lock:
            return frozenset(name for name in names if self.matches(name))


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> TopicPattern:
    """Raises PatternError for what is not a pattern, or one that is too large."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise PatternError(f"it has {len(pattern)} characters; {PATTERN_LENGTH_MAX} is the most")
    return TopicPattern(_Parser(pattern).parse())
