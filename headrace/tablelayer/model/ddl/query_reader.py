"""Queries among other statements: where they begin and end.

`tablelayer.model.ddl.select` analyzes them; its parser is loaded only for a statement with a query in it.
"""

from __future__ import annotations

from sqlglot import TokenType

from headrace.tablelayer.model.ddl.clauses import ClauseReader
from headrace.tablelayer.model.ddl.names import Names
from headrace.tablelayer.model.ddl.query import Select
from headrace.tablelayer.model.ddl.tokens import TokenStream

_BEGINNINGS = ("SELECT", "WITH", "FROM", "VALUES", "PIVOT", "UNPIVOT")


_AFTER_NAMES = (TokenType.COMMA, TokenType.R_PAREN, TokenType.DOT, TokenType.SEMICOLON)


class QueryReader(ClauseReader):
    """A reader of queries."""

    def __init__(self, stream: TokenStream, names: Names) -> None:
        super().__init__(stream, names)
        self.queries: list[tuple[int, int]] = []
        """The positions of the queries that were read since `forget`."""

    def at_query(self, ahead: int = 0) -> bool:
        """Return whether a query begins `ahead` tokens further on, perhaps in brackets."""
        position, tokens = self.stream.position + ahead, self.stream.tokens
        while position < len(tokens) and tokens[position].token_type is TokenType.L_PAREN:
            position += 1
        if position >= len(tokens) or tokens[position].token_type is not TokenType.VAR:
            return False
        following = tokens[position + 1] if position + 1 < len(tokens) else None
        is_name = following is None or following.token_type in _AFTER_NAMES
        return tokens[position].text.upper() in _BEGINNINGS and not is_name

    def query(self, *, in_brackets: bool = False) -> Select:
        """Read a query up to the end of the statement, or up to the closing bracket around it."""
        stream = self.stream
        if stream.token is None:
            raise stream.expected("a query")
        first = last = stream.tokens[stream.position]
        depth = 0
        while (token := stream.token) is not None and not stream.is_kind(TokenType.SEMICOLON):
            if depth == 0 and ((in_brackets and token.token_type is TokenType.R_PAREN) or self.at_emit()):
                break
            depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
            last = token
            stream.position += 1
        end = stream.hint_after(last.end + 1)
        self.queries.append((first.start, end))
        from headrace.tablelayer.model.ddl.select import analyze

        return self.noticed(analyze(stream.sql, first.start, end, self.known))

    def noticed(self, select: Select) -> Select:
        self.notices += [each for each in select.notices if each not in self.notices]
        return select

    def at_emit(self) -> bool:
        """Return whether EMIT CHANGES comes next, at the end of the statement."""
        stream = self.stream
        after = stream.tokens[stream.position + 2 : stream.position + 3]
        return stream.at("EMIT", "CHANGES") and all(each.token_type is TokenType.SEMICOLON for each in after)

    def analyzed(self, sql: str) -> Select:
        """Return the analysis of a query that is not part of the text."""
        from headrace.tablelayer.model.ddl.select import analyze

        return analyze(sql, 0, len(sql), self.known)

    def check_expression(self, start: int, end: int) -> None:
        from headrace.tablelayer.model.ddl.select import check_expression

        check_expression(self.stream.sql, start, end)

    def check_sources(self, start: int, end: int) -> None:
        from headrace.tablelayer.model.ddl.select import check_sources

        check_sources(self.stream.sql, start, end)

    def computes(self, text: str, *, casts: bool = False) -> bool:
        from headrace.tablelayer.model.ddl.select import computes

        return computes(text, casts=casts)
