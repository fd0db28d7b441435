"""The leader epoch of this broker's partitions.

One broker leads everything, so one number serves all partitions. It goes up after every stop that was not
clean: a crash of the machine may have taken unflushed records, and a consumer that has read them finds out by
the epoch (KIP-320). After a clean stop nothing can be missing, and clients need not be disturbed.
"""

from __future__ import annotations

from broker.ports import CoordinationStore, CreateNode, SetNode

_PATH = "/leader_epoch"


async def next_leader_epoch(store: CoordinationStore, *, clean: bool) -> int:
    """The epoch for this run, on disk before it is given out."""
    node = await store.get(_PATH)
    if node is None:
        await store.transact([CreateNode(_PATH, b"0")])
        return 0
    epoch = int(node.data)
    if clean:
        return epoch
    await store.transact([SetNode(_PATH, str(epoch + 1).encode(), node.version)])
    return epoch + 1


async def raise_leader_epoch(store: CoordinationStore, epoch: int) -> None:
    """Have the next runs lead with `epoch` at least: logs that come from elsewhere have been written with it."""
    node = await store.get(_PATH)
    if node is None:
        await store.transact([CreateNode(_PATH, str(max(epoch, 0)).encode())])
    elif int(node.data) < epoch:
        await store.transact([SetNode(_PATH, str(epoch).encode(), node.version)])
