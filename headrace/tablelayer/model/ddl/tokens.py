"""The words of a statement, their positions, and errors that point at them.

Identifiers may be quoted with backticks or double quotes. Texts are in single quotes, which are doubled inside.
Comments are `-- to the end of the line` and `/* ... */`. Words are not case-sensitive, names are.
"""

from __future__ import annotations

import re
from typing import ClassVar

from sqlglot import Token, TokenType
from sqlglot import Tokenizer as SqlTokenizer
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError

from headrace.tablelayer.model.ddl.errors import DdlError
from headrace.tablelayer.model.filters.trees import hint_in


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
        hint = hint_in(sql)
        if hint is not None:
            # As a comment it would be ignored, and the statement would have another meaning than it seems.
            raise DdlError(
                "hints (/*+ ... */) are not in this release: leave it out; to read a table in the past use"
                " FOR SYSTEM_TIME AS OF TIMESTAMP '2026-01-31 12:00:00'",
                sql,
                hint[0],
                hint[1] - hint[0],
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


def _unclosed(sql: str) -> int:
    """Return the start of the quote or comment that is not closed."""
    position = 0
    while position < len(sql) and (match := _CLOSED.match(sql, position)) is not None:
        position = match.end()
    return position
