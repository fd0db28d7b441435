"""The parts of one log, which its operations share."""

from __future__ import annotations

from typing import NamedTuple

from headrace.broker.log.durability import Durability
from headrace.broker.log.epochs import LeaderEpochs
from headrace.broker.log.folder import LogFolder
from headrace.broker.log.health import LogHealth
from headrace.broker.log.log_producers import LogProducers
from headrace.broker.log.segment_chain import SegmentChain
from headrace.broker.runtime.ports import Clock, Disk


class LogParts(NamedTuple):
    """See the module. `name` is that of the partition, for messages."""

    name: str
    disk: Disk
    clock: Clock
    chain: SegmentChain
    folder: LogFolder
    epochs: LeaderEpochs
    producers: LogProducers
    health: LogHealth
    durability: Durability
