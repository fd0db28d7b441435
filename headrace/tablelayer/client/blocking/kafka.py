"""The blocking administration of topics and groups."""

from __future__ import annotations

from headrace.tablelayer.client.admin.kafka import AsyncKafkaAdmin
from headrace.tablelayer.client.blocking.waiting import Waiting, waits


class KafkaAdmin(Waiting):
    """Manages topics and groups. `AsyncKafkaAdmin` documents the methods."""

    describe_cluster = waits(AsyncKafkaAdmin.describe_cluster)
    placements = waits(AsyncKafkaAdmin.placements)
    move_partitions = waits(AsyncKafkaAdmin.move_partitions)
    moving_partitions = waits(AsyncKafkaAdmin.moving_partitions)
    elect_preferred_leaders = waits(AsyncKafkaAdmin.elect_preferred_leaders)
    list_topics = waits(AsyncKafkaAdmin.list_topics)
    create_topic = waits(AsyncKafkaAdmin.create_topic)
    delete_topic = waits(AsyncKafkaAdmin.delete_topic)
    describe_topic = waits(AsyncKafkaAdmin.describe_topic)
    offsets = waits(AsyncKafkaAdmin.offsets)
    offset_ranges = waits(AsyncKafkaAdmin.offset_ranges)
    delete_records = waits(AsyncKafkaAdmin.delete_records)
    log_sizes = waits(AsyncKafkaAdmin.log_sizes)
    brokers = waits(AsyncKafkaAdmin.brokers)
    read = waits(AsyncKafkaAdmin.read)
    read_batches = waits(AsyncKafkaAdmin.read_batches)
    add_partitions = waits(AsyncKafkaAdmin.add_partitions)
    configs = waits(AsyncKafkaAdmin.configs)
    configured = waits(AsyncKafkaAdmin.configured)
    alter_configs = waits(AsyncKafkaAdmin.alter_configs)
    client_quotas = waits(AsyncKafkaAdmin.client_quotas)
    alter_client_quotas = waits(AsyncKafkaAdmin.alter_client_quotas)
    produce = waits(AsyncKafkaAdmin.produce)
    list_groups = waits(AsyncKafkaAdmin.list_groups)
    describe_group = waits(AsyncKafkaAdmin.describe_group)
    delete_group = waits(AsyncKafkaAdmin.delete_group)
    delete_offsets = waits(AsyncKafkaAdmin.delete_offsets)
    commit_offsets = waits(AsyncKafkaAdmin.commit_offsets)
