"""The metadata level: the format of the data that brokers of a cluster write for each other, in the coordination store
and in requests.

All brokers write in the level that is finalized for the cluster, even if they know higher ones. So brokers of two
versions can be members of one cluster and replace each other, until an operator raises the level (UpdateFeatures,
KIP-584); all brokers must know the new level by then. A broker that does not know the level does not start.

|| level | contents |
||---|---|
|| 1 | the first format of clusters; also of those that have no level yet |
"""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.broker.configs.config_key import ConfigError

METADATA_VERSION: Final = "headrace.metadata.version"
FIRST_LEVEL: Final = 1
LEVELS: Final = (1, 1)
"""The lowest and the highest level that this version knows."""


def encode_levels(level: int) -> bytes:
    """Encode the finalized levels for the store."""
    return msgspec.json.encode({METADATA_VERSION: level})


def decode_level(data: bytes) -> int:
    return msgspec.json.decode(data, type=dict[str, int]).get(METADATA_VERSION, FIRST_LEVEL)


def check_level(level: int, levels: tuple[int, int]) -> None:
    """Raise ConfigError if this version cannot be a member of a cluster with the level."""
    lowest, highest = levels
    if not lowest <= level <= highest:
        raise ConfigError(
            f"the metadata of this cluster are at level {level} of {METADATA_VERSION}, and this version knows"
            f" {lowest} to {highest}: " + ("upgrade it first" if level > highest else "raise the level first")
        )
