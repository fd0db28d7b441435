"""`sasl.jaas.config`, as Kafka's JaasConfig reads it: a login module, its control flag and its options.

Also JAAS files, which have one such entry in each section.

    org.apache.kafka.common.security.plain.PlainLoginModule required
        username="admin" password="..." user_ann="...";

Error messages never show a value, since each can be a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN: Final = re.compile(
    r"""(?:\s|//[^\n]*(?:\n|$)|/\*.*?\*/|/\*.*$)*
        (?:(?P<word>[A-Za-z0-9_$.\-\u00a0-\U0010ffff]+)|"(?P<double>(?:[^"\\\n]|\\.)*)"|'(?P<single>(?:[^'\\\n]|\\.)*)'|(?P<sign>[=;])|(?P<brace>[{}])|(?P<other>\S))?""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


class JaasError(ValueError):
    """The text is not a JAAS configuration. The message names the fault and shows no value."""


class JaasEntry(msgspec.Struct, frozen=True):
    """One login module."""

    module: str
    options: dict[str, str]

    @property
    def module_name(self) -> str:
        """The class name without its package."""
        return self.module.rpartition(".")[2]

    def __repr__(self) -> str:
        return f"JaasEntry({self.module!r}, {len(self.options)} options)"


def parse_jaas(text: str) -> JaasEntry:
    """Return the only entry of a configuration. Raises JaasError."""
    tokens = _tokens(text)
    if ("brace", "{") in tokens or ("brace", "}") in tokens:
        raise JaasError("a character that must be in a quotation")
    entries = list(_entries(tokens))
    if not entries:
        raise JaasError("Login module not specified in JAAS config")
    if len(entries) > 1:
        raise JaasError("Only one login module can be used")
    return entries[0]


def parse_jaas_file(text: str) -> dict[str, JaasEntry]:
    """Return each section's entry: `NAME { CLASS required OPTION="VALUE" ...; };`. Raises JaasError."""
    tokens = _tokens(text)
    sections: dict[str, JaasEntry] = {}
    while tokens:
        name, opening = (*tokens, ("", ""), ("", ""))[:2]
        if name[0] not in ("word", "text") or opening != ("brace", "{"):
            raise JaasError("a section begins with its name and {")
        if ("brace", "}") not in tokens:
            raise JaasError(f"section {name[1]} does not end with }};")
        end = tokens.index(("brace", "}"))
        entries = list(_entries(tokens[2:end]))
        if len(entries) != 1:
            raise JaasError(f"section {name[1]} has to have one login module, and has {len(entries)}")
        if tokens[end + 1 : end + 2] != [("sign", ";")]:
            raise JaasError(f"section {name[1]} does not end with }};")
        sections[name[1]] = entries[0]
        tokens = tokens[end + 2 :]
    return sections


def _tokens(text: str) -> list[tuple[str, str]]:
    """Return pairs of (kind, text). Kinds are word, text (quoted), sign and brace."""
    found = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.end() == position:
            break
        position = match.end()
        kind = match.lastgroup
        if kind in ("double", "single"):
            found.append(("text", _unescaped(match[kind])))
        elif kind == "other":
            raise JaasError("an unterminated quotation, or a character that must be quoted")
        elif kind is not None:
            found.append((kind, match[kind]))
    return found


def _unescaped(text: str) -> str:
    """Resolve escapes as Java's StreamTokenizer does: C's letters, and up to three octal digits."""
    return re.sub(
        r"\\(?:([0-3]?[0-7]{1,2})|(.))",
        lambda found: chr(int(found[1], 8)) if found[1] else _ESCAPES.get(found[2], found[2]),
        text,
        flags=re.DOTALL,
    )


def _entries(tokens: list[tuple[str, str]]) -> Iterator[JaasEntry]:
    left = iter(tokens)
    for kind, module in left:
        if kind not in ("word", "text"):
            raise JaasError("Login module not specified in JAAS config")
        _, flag = next(left, ("", ""))
        if not flag:
            raise JaasError("Login module control flag not specified in JAAS config")
        if flag.lower() not in _FLAGS:
            raise JaasError("Invalid login module control flag in JAAS config")
        options = {}
        for kind, key in left:
            if (kind, key) == ("sign", ";"):
                break
            equals, (value_kind, value) = next(left, ("", "")), next(left, ("", ""))
            if kind not in ("word", "text") or equals != ("sign", "=") or value_kind not in ("word", "text"):
                raise JaasError("Value not specified for a key in JAAS config")
            options[key] = value
        else:
            raise JaasError("JAAS config entry not terminated by semi-colon")
        yield JaasEntry(module, options)
