"""The patterns of clients: RE2's dialect, the whole text, bounded time and memory."""

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.runtime.pattern import PATTERN_BYTES_MAX, PatternError, compile_pattern, matching
from headrace.broker.runtime.ports import SystemClock

ATOMS = st.sampled_from(
    [
        "a",
        "b",
        "A",
        "1",
        "_",
        "-",
        r"\.",
        ".",
        "[ab]",
        "[^a]",
        "[a-c1]",
        r"\d",
        r"\w",
        r"\W",
        r"\b",
        r"\B",
        "^",
        "$",
    ]
)


def _joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
    )


def _repeated(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    forms = st.sampled_from(["({})?", "(?:{})*", "(?:{})+?", "(?:{}){{1,3}}"])
    return st.tuples(forms, inner).map(lambda two: two[0].format(two[1]))


ONCE = st.recursive(ATOMS, _joined, max_leaves=3)
PATTERNS = st.recursive(ONCE | _repeated(ONCE), _joined, max_leaves=4)
"""No repetition inside of another: there Python's matcher takes for ever, and stops short of a text without letters."""


@settings(max_examples=200)
@given(PATTERNS, st.sampled_from(["", "(?i)"]), st.lists(st.text("abAB1_.-", max_size=6), max_size=6))
def test_agrees_with_python(pattern, flags, names):
    """`$` is the very end here; and that `\\B` does not match an empty text is Python's own fault."""
    reference = re.compile(flags + pattern.replace("$", r"\Z"), re.ASCII)
    compiled = compile_pattern(flags + pattern)
    for name in names:
        if name or r"\B" not in pattern:
            assert compiled.matches(name) == (reference.fullmatch(name) is not None), (pattern, name)


@pytest.mark.parametrize(
    ("pattern", "those", "others"),
    [
        ("orders-.*", ["orders-", "orders-eu"], ["orders", "my-orders-eu"]),
        ("a|b.*", ["a", "b", "bc"], ["ac", ""]),
        (r"\Qa.b\E.*", ["a.b", "a.bc"], ["axb"]),
        (r"[[:digit:]]+", ["123"], ["12a"]),
        (r"[[:^alpha:]x]", ["1", "x", "."], ["a"]),
        (r"\pL+\PN?", ["ab", "ab."], ["a1b"]),
        (r"\p{Lu}\p{^Lu}", ["Aa", "A1"], ["AA"]),
        ("(?i)topic(?-i:X)", ["TopicX", "TOPICX"], ["topicx"]),
        ("(?P<name>a)(?<other>b)", ["ab"], ["a"]),
        (r"\x61\x{62}\143", ["abc"], ["ab"]),
        ("[]a]b", ["ab"], ["b"]),
        ("[a-]+", ["a-a"], ["b"]),
        ("a{2}{", [], ["aa"]),
        ("", [""], ["a"]),
        (".*", ["", "__consumer_offsets"], ["two\nlines"]),
        ("(?s).*", ["two\nlines"], []),
        ("ü.", ["üß"], ["ü"]),
    ],
)
def test_syntax(pattern, those, others):
    compiled = compile_pattern(pattern)
    assert [name for name in [*those, *others] if compiled.matches(name)] == those


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(", "missing ): ("),
        ("a)", "unexpected ): a)"),
        ("[a", "missing ]: [a"),
        ("*", "no argument for repetition operator: *"),
        ("a**", "bad repetition operator: **"),
        ("a++", "bad repetition operator: ++"),
        ("a{1001}", "invalid repetition size: {1001}"),
        (r"(a)\1", r"invalid escape sequence: \1"),
        ("(?=a)", "invalid perl operator: (?="),
        ("(?<=a)b", "invalid perl operator: (?<="),
        (r"\Z", r"invalid escape sequence: \Z"),
        ("\\", "trailing \\"),
        ("[b-a]", "invalid character class range: b-a"),
        ("\ud800", "it is not valid Unicode"),
    ],
)
def test_patterns_that_re2_refuses_are_refused_with_its_message(pattern, problem):
    with pytest.raises(PatternError) as refused:
        compile_pattern(pattern)
    assert str(refused.value) == problem


@pytest.mark.parametrize(
    "pattern",
    [
        "a" * (PATTERN_BYTES_MAX + 1),
        r"\pL" * 600,
        r"\PL" * 9,
        "(?:(?:a{100}){100}){100}",
        "(?:.{10}){100}",
        "(.*){1000}",
    ],
)
def test_an_expensive_pattern_is_refused_before_compilation(pattern):
    seconds = []
    for _ in range(3):  # the garbage collector may run in one of them
        started = time.thread_time()
        with pytest.raises(PatternError, match=r"too large|the maximum is|repetition size"):
            compile_pattern(pattern)
        seconds.append(time.thread_time() - started)
    assert min(seconds) < 0.01


@pytest.mark.parametrize(
    "pattern", ["(a*)*b", "(a+)+b", "(a|a)*c", "(a|aa)+$", "(.*)(.*)(.*)(.*)x", "(a?){60}a{60}"]
)
def test_no_pattern_takes_long(pattern):
    """Each of these takes a backtracking matcher for ever."""
    compiled = compile_pattern(pattern)
    started = time.thread_time()
    compiled.matches("a" * 30_000)
    assert time.thread_time() - started < 1


def test_many_names_are_matched_in_slices_that_others_share():
    names = [f"topic-{number}" for number in range(30_000)]

    async def run(executor):
        found = asyncio.ensure_future(matching("topic-.*[05]", names, executor, SystemClock()))
        turns = 0
        while not found.done():
            await asyncio.get_running_loop().run_in_executor(executor, int)
            turns += 1
        return found.result(), turns

    with ThreadPoolExecutor(1) as executor:
        found, turns = asyncio.run(run(executor))
    assert found == names[::5]
    assert turns >= 5
