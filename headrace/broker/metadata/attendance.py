"""Decisions of the controller about registered brokers. Pure: registrations in, events for `controller.step` out."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from headrace.broker.metadata.events import BrokerGone, BrokerLeaving, BrokerStarted
from headrace.broker.metadata.image import ClusterImage, Registered
from headrace.broker.metadata.membership import Claim


def controlled(image: ClusterImage, claim: Claim | None, controller_id: int) -> ClusterImage:
    """The image with its controller: this broker, by its claim, or another one."""
    epoch, version = (-1, -1) if claim is None else (claim.epoch, claim.version)
    if (image.controller_epoch, image.controller_version, image.controller_id) == (
        epoch,
        version,
        controller_id,
    ):
        return image
    return replace(image, controller_epoch=epoch, controller_version=version, controller_id=controller_id)


def to_attend(
    image: ClusterImage, registered: Mapping[int, Registered], min_isr: int
) -> BrokerGone | BrokerStarted | BrokerLeaving | None:
    """The next event that the image lacks; None if it has everything that is registered.

    A broker that has started again comes first: records that it may have lost must not count when others are gone.
    """
    there = image.brokers
    for broker_id, found in registered.items():
        if broker_id in there and there[broker_id].epoch != found.broker.epoch:
            return BrokerStarted(found.broker, found.clean, found.kept, found.synced)
    for broker_id in there:
        if broker_id not in registered:
            return BrokerGone(broker_id, min_isr)
    for broker_id, found in registered.items():
        if broker_id not in there:
            return BrokerStarted(found.broker, found.clean, found.kept, found.synced)
        if found.leaving and not there[broker_id].leaving:
            return BrokerLeaving(broker_id, min_isr)
    return None
