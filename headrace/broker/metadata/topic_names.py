"""Kafka's rules for the names and sizes of topics."""

from __future__ import annotations

import re
from typing import Final

from headrace.broker.partitions.topic import TopicImage
from headrace.protocol.errors import ErrorCode, KafkaError

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
TOPIC_NAME_LENGTH_MAX: Final = 249  # Kafka's own limit: the folder name also has "-<partition>"
PARTITIONS_PER_TOPIC_MAX: Final = 100_000
"""A typing error must not allocate gigabytes; Kafka's practical limit is lower."""

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Check Kafka's rule for topic names. Raises KafkaError(INVALID_TOPIC_EXCEPTION)."""
    if not name:
        problem = "the empty string is not allowed"
    elif name in (".", ".."):
        problem = f"'{name}' is not allowed"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        problem = f"the length of '{name[:TOPIC_NAME_LENGTH_MAX]}…' is longer than the max allowed length "
        problem += str(TOPIC_NAME_LENGTH_MAX)
    elif not _LEGAL_NAME.fullmatch(name):
        problem = (
            f"'{name}' is illegal, it contains a character other than ASCII alphanumerics, '.', '_' and '-'"
        )
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


FILES_PER_PARTITION: Final = 8
"""Files and folders that a partition needs, about: those of a segment, a checkpoint, an epoch file, its folder."""
FILES_KEPT_FREE: Final = 1_000
"""Files that new partitions may not take: rolled segments, snapshots and stores need some."""


def check_partition_count(name: str, count: int) -> None:
    """Check the number of partitions of a new topic. Raises KafkaError(INVALID_PARTITIONS)."""
    if not 0 < count <= PARTITIONS_PER_TOPIC_MAX:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic '{name}' cannot have {count} partitions: choose 1 to {PARTITIONS_PER_TOPIC_MAX}.",
        )


def check_free_files(name: str, partitions: int, free_files: int) -> None:
    """Check that the file system can have the files of new partitions. -1: it has no limit.

    Raises KafkaError(POLICY_VIOLATION).
    """
    needed = partitions * FILES_PER_PARTITION
    if 0 <= free_files < needed + FILES_KEPT_FREE:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"Topic '{name}' cannot have {partitions} more partitions: they need about {needed} files, and the file "
            f"system of the data directory can have {free_files} more, of which {FILES_KEPT_FREE} are kept for the "
            "others. Delete topics, or use a file system with more inodes.",
        )


def unknown_topic(name: str) -> KafkaError:
    """Return the error for an unknown topic; scripts know its first sentence from Kafka."""
    return KafkaError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"This server does not host this topic-partition. The topic '{name}' does not exist.",
    )


def unknown_partition(name: str, index: int, count: int) -> KafkaError:
    return KafkaError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"This server does not host this topic-partition. Topic '{name}' has {count} partitions; "
        f"there is no partition {index}.",
    )


def already_exists(name: str) -> KafkaError:
    return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")


def check_growth(image: TopicImage, total: int) -> None:
    """Check that a topic may grow to `total` partitions. Raises KafkaError(INVALID_PARTITIONS)."""
    if total == image.partition_count:
        problem = f"Topic already has {total} partition(s)."
    elif total < image.partition_count:
        problem = f"Topic currently has {image.partition_count} partitions, which is higher than the requested {total}."
    elif total > PARTITIONS_PER_TOPIC_MAX:
        problem = f"{total} partitions are too many; the maximum is {PARTITIONS_PER_TOPIC_MAX}."
    else:
        return
    raise KafkaError(ErrorCode.INVALID_PARTITIONS, problem)


def metric_name(topic: str) -> str:
    return topic.replace(".", "_")


def check_collision(name: str, other: str) -> None:
    """Check Kafka's rule for topics that clients create: names that differ only in '.' and '_' make the same
    metric.

    `other` is the topic that has the metric. Raises KafkaError(INVALID_TOPIC_EXCEPTION).
    """
    if name != other:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic: {other}. '.' and '_' count as the same in a topic's name.",
        )
