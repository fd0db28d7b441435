"""Users and their rights: CREATE, ALTER and DROP USER, GRANT, REVOKE, SHOW GRANTS, SHOW USERS.

Rights are Kafka's ACLs (`tablelayer.model.rights`), so GRANT has only what ACLs can express: privileges on a table or
a database, and columns of SELECT on a table.
"""

from __future__ import annotations

from sqlglot import Token, TokenType

from headrace.tablelayer.model.ddl.clauses import ClauseReader
from headrace.tablelayer.model.ddl.statements import (
    AlterUser,
    CreateUser,
    DropUser,
    Grant,
    Password,
    Privilege,
    Revoke,
    ShowGrants,
    ShowUsers,
)
from headrace.tablelayer.model.rights import OPERATIONS, principal_of
from headrace.tablelayer.model.table.path import TablePath


class RightsReader:
    """A reader whose methods read the statement or clause in their name and raise DdlError."""

    def __init__(self, reader: ClauseReader) -> None:
        self._reader = reader
        self._stream = reader.stream

    def grant(self) -> Grant:
        self._stream.expect("GRANT")
        privileges = self.privileges()
        path, database = self.object(privileges)
        self._stream.expect("TO")
        return Grant(privileges, path, database, self.principal())

    def revoke(self) -> Revoke:
        self._stream.expect("REVOKE")
        privileges = self.privileges()
        path, database = self.object(privileges)
        self._stream.expect("FROM")
        return Revoke(privileges, path, database, self.principal())

    def show_grants(self) -> ShowGrants:
        """Read the rest of SHOW GRANTS."""
        if self._stream.accept("FOR"):
            return ShowGrants(principal=self.principal())
        if self._stream.accept("ON"):
            if self._stream.accept("DATABASE"):
                return ShowGrants(database=self._reader.database_name())
            self._stream.accept("TABLE")
            return ShowGrants(path=self._reader.table_path())
        return ShowGrants()

    def show_users(self) -> ShowUsers:
        return ShowUsers()

    def create_user(self) -> CreateUser:
        """Read the rest of CREATE USER."""
        if_not_exists = self._stream.accept("IF", "NOT", "EXISTS")
        return CreateUser(self.user(), self.password(), if_not_exists)

    def alter_user(self) -> AlterUser:
        return AlterUser(self.user(), self.password())

    def drop_user(self) -> DropUser:
        if_exists = self._stream.accept("IF", "EXISTS")
        return DropUser(self.user(), if_exists)

    def privileges(self) -> tuple[Privilege, ...]:
        found: dict[str, Privilege] = {}
        while True:
            token = self._stream.name(f"a privilege ({', '.join(OPERATIONS)})")
            name = token.text.upper()
            if name not in OPERATIONS:
                raise self._stream.error(
                    f"{token.text} is not a privilege; the privileges are {', '.join(OPERATIONS)}", token
                )
            if name == "ALL":
                self._stream.accept("PRIVILEGES")
            columns: tuple[str, ...] = ()
            if self._stream.is_kind(TokenType.L_PAREN):
                if name != "SELECT":
                    raise self._stream.error(
                        f"only SELECT can have columns; {name} is for whole tables", self._stream.token
                    )
                self._stream.position += 1
                columns = tuple(self._reader.names())
            if name in found:
                raise self._stream.error(f"{name} is named twice", token)
            found[name] = Privilege(name, columns)
            if not self._stream.accept_kind(TokenType.COMMA):
                return tuple(found.values())

    def object(self, privileges: tuple[Privilege, ...]) -> tuple[TablePath | None, str | None]:
        self._stream.expect("ON")
        token = self._stream.token
        if self._stream.accept("DATABASE"):
            if any(each.columns for each in privileges):
                raise self._stream.error(
                    "columns can only be granted on a table: GRANT SELECT (a, b) ON TABLE db.t", token
                )
            return None, self._reader.database_name()
        self._stream.accept("TABLE")
        return self._reader.table_path(), None

    def principal(self) -> str:
        """Read a user's name, or a text: a user's name, or a principal such as 'User:CN=ann'."""
        token = self._name_or_text("a user's name, or a principal in single quotes, such as 'User:ann'")
        kind, colon, name = token.text.partition(":")
        if not token.text or (colon and not (kind and name)):
            raise self._stream.error("a principal is written as 'Type:name'", token)
        return principal_of(token.text)

    def user(self) -> str:
        token = self._name_or_text("a user's name")
        if not token.text or token.text.startswith("User:"):
            raise self._stream.error("a user's name has no 'User:' before it", token)
        return token.text

    def password(self) -> Password:
        if self._stream.accept("IDENTIFIED"):
            self._stream.expect("BY")
        else:
            self._stream.accept("WITH")
            self._stream.expect("PASSWORD")
        token = self._stream.text("a password in single quotes")
        if not token.text:
            raise self._stream.error("the password is empty", token)
        return Password(token.text)

    def _name_or_text(self, what: str) -> Token:
        if self._stream.is_kind(TokenType.STRING):
            return self._stream.text(what)
        return self._stream.name(what)
