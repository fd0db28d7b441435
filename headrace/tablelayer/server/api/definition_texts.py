"""Definitions of tables in JSON, and their digests: statements ask for them one after the other."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.digest import digest_of
from headrace.tablelayer.server.services import Services

_KNOWN_MAX: Final = 256
_LENGTH_MAX: Final = 64 << 10
"""Maximum length of a text that is kept."""


class DefinitionTexts:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._known: dict[UUID, tuple[StoredTable, str | None, int]] = {}

    async def text(self, definition: StoredTable) -> str:
        """Return a definition in JSON."""
        known = self._known.get(definition.table_id)
        if known is not None and known[0] is definition and known[1] is not None:
            return known[1]
        text, digest = await self._services.run(_text_and_digest, definition)
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[definition.table_id] = definition, text if len(text) <= _LENGTH_MAX else None, digest
        return text

    async def digest(self, definition: StoredTable) -> int:
        """Return the digest of a definition."""
        known = self._known.get(definition.table_id)
        if known is None or known[0] is not definition:
            return digest_of(await self.text(definition))
        return known[2]


def _text_and_digest(definition: StoredTable) -> tuple[str, int]:
    text = definition.to_json()
    return text, digest_of(text)
