"""Topic patterns: RE2's dialect, whole names, linear time."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.groups.modern.topic_pattern import PatternError, compile_pattern

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
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        inner.map(lambda one: f"({one})?"),
        inner.map(lambda one: f"(?:{one})*"),
        inner.map(lambda one: f"(?:{one})+?"),
        inner.map(lambda one: f"(?:{one}){{1,3}}"),
    ),
    max_leaves=8,
)


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
    ("pattern", "matching", "others"),
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
        (".*", ["", "__consumer_offsets"], []),
    ],
)
def test_syntax(pattern, matching, others):
    compiled = compile_pattern(pattern)
    assert [name for name in [*matching, *others] if compiled.matches(name)] == matching
    assert compiled.matching([*matching, *others]) == frozenset(matching)


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "a)", "[a", "*", "a**", "a{2}{3}", "{2}", "a{3,2}", "a{1001}", r"(a)\1", "(?=a)", "(?!a)",
     "(?<=a)b", "(?>a)", "a++", r"\Z", r"\y", "\\", "[b-a]", "[[:nope:]]", r"\p{Nope}", "(?P<a>x)(?P<a>y)",
     "(?P<>a)", r"\x{110000}", "(?x)a", "(" * 200 + ")" * 200, "(?:(?:a{100}){100}){100}", "a" * 5000],
)  # fmt: skip
def test_what_re2_refuses(pattern):
    with pytest.raises(PatternError):
        compile_pattern(pattern)


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*c", "(a|aa)+$", "(.*)(.*)(.*)(.*)x", "(a?){60}a{60}"])
def test_no_pattern_takes_long(pattern):
    """Each of these takes a backtracking matcher for ever."""
    compiled = compile_pattern(pattern)
    started = time.process_time()
    compiled.matches("a" * 249)
    assert time.process_time() - started < 1
