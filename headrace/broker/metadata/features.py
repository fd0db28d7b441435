"""The level of what brokers of a cluster write for each other: in the coordination store, in requests among them.

All brokers write what the level says that is finalized for the cluster, whatever more they know: so brokers of two
versions are members of one cluster, and each can be put in the other's place, until somebody raises the level
(UpdateFeatures, KIP-584) that all of them know by then. A broker that does not know it does not start.

| level | what it brings |
|---|---|
| 1 | what clusters have written from their beginning; theirs that have no level yet |
"""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.broker.configs.config_key import ConfigError

METADATA_VERSION: Final = "headrace.metadata.version"
FIRST_LEVEL: Final = 1
LEVELS: Final = (1, 1)
"""The lowest and the highest that this version knows."""


def encode_levels(level: int) -> bytes:
    """What the store has of the levels that are finalized."""
    return msgspec.json.encode({METADATA_VERSION: level})


def decode_level(data: bytes) -> int:
    return msgspec.json.decode(data, type=dict[str, int]).get(METADATA_VERSION, FIRST_LEVEL)


def check_level(level: int, levels: tuple[int, int]) -> None:
    """Raises ConfigError if this version cannot be a member of a cluster with the level."""
    lowest, highest = levels
    if not lowest <= level <= highest:
        raise ConfigError(
            f"the metadata of this cluster are at level {level} of {METADATA_VERSION}, and this version knows"
            f" {lowest} to {highest}: " + ("upgrade it first" if level > highest else "raise the level first")
        )
