"""The digest of a table's definition, by which a writer says which definition its rows were made for."""

from __future__ import annotations

from hashlib import blake2b


def digest_of(definition: str) -> int:
    """Return the digest of a definition in JSON (`TableDefinition.to_json`): a number of 63 bits, never 0."""
    return (int.from_bytes(blake2b(definition.encode(), digest_size=8).digest(), "big") >> 1) or 1
