"""The words of a statement, their positions, and errors that point at them.

Identifiers may be quoted with backticks or double quotes. Texts are in single quotes, which are doubled inside.
Comments are `-- to the end of the line` and `/* ... */`. Words are not case-sensitive, names are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from sqlglot import Token, TokenType
from sqlglot import Tokenizer as SqlTokenizer
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError

from headrace.tablelayer.model.ddl.errors import DdlError
from headrace.tablelayer.model.filters.trees import hints_in


class _Words(Dialect):
    """A dialect without keywords, so that every word can also be a name."""

    class Tokenizer(SqlTokenizer):
        IDENTIFIERS = ["`", '"']  # noqa: RUF012
        QUOTES = ["'"]  # noqa: RUF012
        STRING_ESCAPES = ["'"]  # noqa: RUF012
        COMMENTS = ["--", ("/*", "*/")]  # noqa: RUF012
        KEYWORDS: ClassVar[dict[str, TokenType]] = {}


_CLOSED = re.compile(
    r"'(?:[^']|'')*'|\"[^\"]*\"|`[^`]*`|--[^\n]*|/\*.*?\*/|[^'\"`/-]+|/(?!\*)|-(?!-)", re.DOTALL
)


class TokenStream:
    """The tokens of a text, read from left to right."""

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self.position = 0
        try:
            self.tokens: list[Token] = _Words().tokenize(sql)
        except TokenError:
            reason = "the quote or comment that begins here is not closed"
            raise DdlError(reason, sql, _unclosed(sql), 1) from None
        self._hints = hints_in(sql)

    def hint_after(self, position: int) -> int:
        """Return the end of the last hint between a position and the next token; without one, the position."""
        token = self.token
        limit = len(self.sql) if token is None else token.start
        return max((last for first, last in self._hints if position <= first < limit), default=position)

    def check_hints(self, start: int, end: int, known: Sequence[tuple[int, int]] = ()) -> None:
        """Raise DdlError for a hint between two positions, except in `known` ones: as a comment it would be ignored."""
        for first, last in self._hints:
            if start <= first < end and not any(begin <= first < after for begin, after in known):
                raise DdlError(
                    "hints (/*+ ... */) are only known after a table of a query, as /*+ OPTIONS('name' = 'value') */:"
                    " leave it out",
                    self.sql,
                    first,
                    last - first,
                )

    @property
    def token(self) -> Token | None:
        """The next token, None at the end of the text."""
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def is_kind(self, kind: TokenType) -> bool:
        token = self.token
        return token is not None and token.token_type is kind

    def at(self, *words: str) -> bool:
        """Whether these words (upper case, unquoted) come next."""
        for offset, word in enumerate(words):
            index = self.position + offset
            if index >= len(self.tokens):
                return False
            token = self.tokens[index]
            if token.token_type is not TokenType.VAR or token.text.upper() != word:
                return False
        return True

    def accept(self, *words: str) -> bool:
        """Skip these words if they come next; return whether they do."""
        if not self.at(*words):
            return False
        self.position += len(words)
        return True

    def accept_kind(self, kind: TokenType) -> bool:
        if not self.is_kind(kind):
            return False
        self.position += 1
        return True

    def expect(self, *words: str) -> None:
        for word in words:
            if not self.accept(word):
                raise self.expected(" ".join(words))

    def expect_kind(self, kind: TokenType, what: str) -> Token:
        token = self.token
        if token is None or token.token_type is not kind:
            raise self.expected(what)
        self.position += 1
        return token

    def name(self, what: str) -> Token:
        """Read a name, quoted or not."""
        token = self.token
        if token is None or token.token_type not in (TokenType.VAR, TokenType.IDENTIFIER):
            raise self.expected(what)
        self.position += 1
        return token

    def text(self, what: str) -> Token:
        """Read a text in single quotes."""
        return self.expect_kind(TokenType.STRING, what)

    def expected(self, what: str) -> DdlError:
        """Return an error at the next token, which should be `what`."""
        token = self.token
        if token is None:
            return self.error(f"expected {what}, but the statement ends here", None)
        return self.error(f"expected {what}, found {self.source(token)}", token)

    def error(self, reason: str, token: Token | None) -> DdlError:
        """Return an error at a token; None: at the end of the text."""
        if token is None:
            return DdlError(reason, self.sql, len(self.sql.rstrip()), 0)
        return DdlError(reason, self.sql, token.start, token.end - token.start + 1)

    def source(self, token: Token) -> str:
        """Return the token as it is written."""
        return self.sql[token.start : token.end + 1]


def hint_options(text: str) -> dict[str, str]:
    """Return the pairs of a hint's text, `OPTIONS('name' = 'value', ...)`. Raises ValueError."""
    found: dict[str, str] = {}
    try:
        stream = TokenStream(text)
        stream.expect("OPTIONS")
        stream.expect_kind(TokenType.L_PAREN, "'('")
        while True:
            name = stream.text("a name in single quotes").text
            stream.expect_kind(TokenType.EQ, "'='")
            if name in found:
                raise ValueError(f"the hint's option '{name}' is given twice")
            found[name] = stream.text("a value in single quotes").text
            if not stream.accept_kind(TokenType.COMMA):
                stream.expect_kind(TokenType.R_PAREN, "',' or ')'")
                break
        if stream.token is not None:
            raise stream.expected("the end of the hint")
    except DdlError as error:
        raise ValueError(f"a hint is written OPTIONS('name' = 'value', ...): {error.reason}") from None
    return found


def _unclosed(sql: str) -> int:
    """Return the start of the quote or comment that is not closed."""
    position = 0
    while position < len(sql) and (match := _CLOSED.match(sql, position)) is not None:
        position = match.end()
    return position
