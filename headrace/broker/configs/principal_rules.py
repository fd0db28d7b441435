"""Map the distinguished name of a client's certificate to the name of a principal (KIP-371)."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from headrace.broker.configs.config_key import ConfigError


class _Rule(msgspec.Struct, frozen=True):
    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""


_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))"
    r"\s*(?:,|\n|\Z)",
    re.DOTALL,
)


class PrincipalRules:
    """`ssl.principal.mapping.rules` (KIP-371): `RULE:pattern/replacement/[LU]` and `DEFAULT`, separated by commas.

    The first rule whose pattern matches the whole name makes the principal's; `$1` in a replacement is the pattern's
    first group; L and U make it lower or upper case.
    """

    def __init__(self, text: str) -> None:
        """Raises ConfigError if the text is not such a list."""
        self._rules: list[_Rule] = []
        position = 0
        while position < len(text.rstrip()):
            found = _RULE.match(text, position)
            if found is None:
                raise ConfigError(
                    f"Invalid rule: `{text[position:].strip()}`; write DEFAULT or RULE:pattern/replacement/[LU]"
                )
            position = found.end()
            if found["default"]:
                self._rules.append(_Rule(None))
                continue
            try:
                pattern = re.compile(found["pattern"])
                replacement = _replacement(found["replacement"], pattern.groups)
            except re.error as error:
                raise ConfigError(f"Invalid rule: `{found[0].strip(', ')}`: {error}") from None
            self._rules.append(_Rule(pattern, replacement, found["case"]))

    def name_of(self, distinguished_name: str) -> str | None:
        """The principal's name, or None when no rule matches."""
        for rule in self._rules:
            if rule.pattern is None:
                return distinguished_name
            if rule.pattern.fullmatch(distinguished_name):
                name = rule.pattern.sub(rule.replacement, distinguished_name)
                return {"L": name.lower(), "U": name.upper()}.get(rule.case, name)
        return None


def _replacement(java: str, groups: int) -> str:
    r"""Translate Java's replacement text to Python's: `$1` is `\g<1>`, `\x` is x; a group that the pattern does not
    have stays text.
    """

    def python(found: re.Match[str]) -> str:
        number = found["group"]
        if number is None:
            return str(found["escaped"] or found[0]).replace("\\", r"\\")
        digits = next(
            (number[:end] for end in range(len(number), 0, -1) if int(number[:end]) <= groups), None
        )
        return f"${number}" if digits is None else rf"\g<{digits}>{number[len(digits) :]}"

    return re.sub(r"\$(?P<group>\d+)|\\(?P<escaped>.)|\\", python, java, flags=re.DOTALL)
