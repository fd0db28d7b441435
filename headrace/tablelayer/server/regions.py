"""The batches in a region of a table's log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.protocol.records.header import ARROW_HEADER_SIZE, BatchHeader, read_header

if TYPE_CHECKING:
    from headrace.broker.log.region import FileRegion


def headers_of(region: FileRegion) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each batch of a region of whole batches. Blocking."""
    position = 0
    while position < region.size:
        header = read_header(region.read_at(position, ARROW_HEADER_SIZE))
        yield position, header
        position += header.size
