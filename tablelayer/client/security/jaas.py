"""`sasl.jaas.config`: one entry of Java's login configuration, of which Kafka's clients use the options.

    org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="...";

Errors name what is wrong with the form, never a value: passwords are among them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from tablelayer.client.errors import SettingsError

_TOKEN: Final = re.compile(
    r"""\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([=;])|([^\s="';]+))""", re.DOTALL
)
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_FORM: Final = 'sasl.jaas.config is not of the form `CLASS required NAME="VALUE" ...;`'


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """A login module's class and its options."""

    module: str
    options: dict[str, str] = field(repr=False)


def parse_jaas(text: str) -> JaasEntry:
    """Raises SettingsError for anything but one entry."""
    tokens: list[tuple[str, str]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position, end)
        if match is None:
            raise SettingsError(f"{_FORM}: a quotation mark is missing")
        quoted = match[1] if match[1] is not None else match[2]
        if quoted is not None:
            tokens.append(("value", re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)))
        else:
            tokens.append(("sign", match[3]) if match[3] else ("word", match[4]))
        position = match.end()
    if len(tokens) < 3 or tokens[0][0] != "word" or tokens[1][1].lower() not in _FLAGS:
        raise SettingsError(f"{_FORM}: it begins with the class of a login module and `required`")
    if tokens[-1] != ("sign", ";"):
        raise SettingsError(f"{_FORM}: the semicolon at its end is missing")
    given = tokens[2:-1]
    options: dict[str, str] = {}
    for place in range(0, len(given), 3):
        entry = given[place : place + 3]
        if len(entry) < 3 or entry[0][0] != "word" or entry[1] != ("sign", "=") or entry[2][0] == "sign":
            raise SettingsError(f'{_FORM}: after the flag come pairs NAME="VALUE"')
        options[entry[0][1]] = entry[2][1]
    return JaasEntry(tokens[0][1], options)
