"""The names that the statements of a session know, beside those on the server."""

from __future__ import annotations

from dataclasses import dataclass, field

HOME = ("default_catalog", "default_database")
"""Flink's catalog and database of a session that has chosen none: here the database that the session began in."""


@dataclass(slots=True)
class Names:
    """The current database, views and temporary tables (queries by `database.name`), and catalogs.

    `catalogs` has for each catalog the database that USE CATALOG chooses, None for the one that the session began in.
    All of them are this server.
    """

    database: str
    views: dict[str, str] = field(default_factory=dict)
    catalogs: dict[str, str | None] = field(default_factory=dict)
    home: str = ""

    def __post_init__(self) -> None:
        self.home = self.home or self.database

    def copy(self) -> Names:
        return Names(self.database, dict(self.views), dict(self.catalogs), self.home)

    def knows(self, catalog: str) -> bool:
        return catalog == HOME[0] or catalog in self.catalogs

    def database_of(self, catalog: str, database: str) -> str:
        """Return the database that `catalog.database` means. Raises ValueError."""
        if not self.knows(catalog):
            raise ValueError(
                f"there is no catalog '{catalog}' in this session: name tables as database.table, or say before"
                f" CREATE CATALOG {catalog} WITH ('type' = 'fluss')"
            )
        return self.home if (catalog, database) == HOME else database

    def database_in(self, catalog: str) -> str:
        """Return the database that USE CATALOG chooses."""
        return self.catalogs.get(catalog) or self.home
