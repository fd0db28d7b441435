"""The tests that show the meaning of each API in each version: a line of the reference, and its tests.

A line whose test is removed or renamed is noticed here. Security and quotas are not listed.
"""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

RULES = {
    "Fetch 13: unknown topic id, another topic's id, a session begun by name": """
        api/test_fetch.py::test_an_unknown_topic_id_is_told_per_partition
        api/test_fetch.py::test_the_id_of_a_deleted_topic_does_not_show_the_one_made_after_it
        api/test_fetch_sessions.py::test_an_unknown_session_and_one_of_the_other_kind_are_named
        api/test_fetch_sessions.py::test_a_session_by_id_notices_that_its_topic_went_and_came_again""",
    "Metadata 12: topics by id": "api/test_metadata.py::test_topics_by_id_from_version_12_on",
    "Fetch 12: diverging epochs; 16: the leader and where it is": """
        api/test_fetch.py::test_leader_epochs_fence_and_show_what_diverged
        api/test_fetch.py::test_a_fenced_consumer_is_told_the_leader""",
    "Fetch sessions: epochs, unknown ids, news only, forgotten topics, slots": """
        api/test_fetch_sessions.py::test_epochs_must_follow_each_other_and_wrap_to_one
        api/test_fetch_sessions.py::test_partitions_are_added_changed_and_forgotten_and_an_empty_session_ends
        api/test_fetch_sessions.py::test_only_changes_are_answered_and_partitions_with_records_go_last
        api/test_fetch_sessions.py::test_a_session_answers_like_a_full_fetch
        api/test_fetch_sessions.py::test_eviction_follows_kafkas_rule""",
    "Fetch: sizes in order of the request, the first batch whole, the batch around the offset": """
        api/test_fetch.py::test_kip74_sizes
        api/test_fetch.py::test_a_fetch_inside_a_batch_gives_the_whole_batch""",
    "Fetch: a long poll wakes on append, deletion, failure, marker, stop": """
        api/test_fetch.py::test_a_waiting_fetch_is_woken_by_an_append
        api/test_fetch.py::test_a_waiting_fetch_is_woken_by_the_deletion_of_the_topic
        api/test_fetch.py::test_a_waiting_fetch_is_woken_by_a_failure
        api/test_fetch.py::test_waiting_fetches_are_answered_when_the_broker_stops
        transactions/test_broker.py::test_t5_a_waiting_read_committed_fetch_is_woken_by_the_marker""",
    "Fetch: outside of the log": """
        api/test_fetch.py::test_offsets_outside_the_log_are_an_error
        api/test_fetch.py::test_before_the_log_start_is_an_error""",
    "ListOffsets: special values by version, by time, below what is stable": """
        api/test_offsets.py::test_special_timestamps_mean_something_from_their_version_on
        api/test_offsets.py::test_earliest_latest_and_by_time
        api/test_offsets.py::test_an_empty_partition
        api/test_offsets.py::test_errors_of_list_offsets_are_per_partition
        transactions/test_broker.py::test_t5_list_offsets_of_read_committed_ends_where_it_is_stable""",
    "Produce: acks, replicas in sync, errors of single records, the leader, topic ids": """
        api/test_produce.py::test_a_refused_batch_has_kafkas_error_code
        api/test_produce.py::test_acks_all_needs_the_replicas_that_the_topic_asks_for
        api/test_extension.py::test_record_errors_are_told_with_their_indexes
        log/test_preparation.py::test_b7_a_compacted_topic_takes_no_record_without_a_key_and_says_which
        api/test_produce.py::test_a_closing_partition_answers_with_the_current_leader
        api/test_produce.py::test_an_unknown_topic_id_is_told_per_partition_and_the_others_are_written""",
    "OffsetCommit 9, OffsetFetch 9: the member epoch": """
        groups/test_consumer_groups.py::test_the_epoch_of_the_member_counts
        groups/test_consumer_groups.py::test_an_older_epoch_may_commit_partitions_that_it_still_owns""",
    "OffsetFetch 8: several groups; 7: RequireStable": """
        groups/test_group_apis.py::test_offset_fetch_v8_answers_several_groups_in_one_call
        transactions/test_broker.py::test_t6_e5_offsets_of_a_group_commit_with_the_transaction""",
    "OffsetCommit: the metadata string comes back, up to 4096 bytes": """
        groups/test_group_apis.py::test_metadata_strings_round_trip_in_every_version_and_over_a_restart
        groups/test_offsets.py::test_metadata_is_bounded_in_bytes""",
    "FindCoordinator: keys and types, a broker of Metadata": """
        groups/test_group_apis.py::test_find_coordinator_names_a_broker_of_metadata_for_each_key
        groups/test_coordinator.py::test_find_coordinator_in_every_version""",
    "JoinGroup 4, 5, 7, 9": """
        groups/test_group_apis.py::test_join_v4_asks_to_come_back_with_the_id_it_gives
        groups/test_group_apis.py::test_join_v5_a_replacement_fences_the_previous_static_member
        groups/test_group_apis.py::test_join_v7_says_type_and_name_of_the_protocol
        groups/test_group_apis.py::test_join_v9_tells_a_leader_that_came_back_to_skip_the_assignment""",
    "classic groups: error codes": """
        groups/test_group_apis.py::test_classic_errors_have_kafkas_codes
        groups/test_group_apis.py::test_classic_errors_of_a_rebalance_and_of_a_full_group""",
    "classic groups: three seconds for the first rebalance": """
        groups/test_group_apis.py::test_the_first_rebalance_waits_three_seconds_by_default
        groups/test_joining.py::test_first_generation_waits_for_the_delay""",
    "classic groups: assignments are opaque, empty for whom the leader forgot": """
        groups/test_group_apis.py::test_assignments_are_the_leaders_bytes_and_empty_for_forgotten_members
        groups/test_assignments.py::test_unassigned_member_gets_empty_bytes""",
    "KIP-848: heartbeats, assignors, epochs, patterns": """
        groups/test_consumer_groups.py::test_a_partition_is_revoked_before_it_is_assigned
        groups/test_consumer_groups.py::test_an_epoch_ahead_is_fenced
        groups/test_consumer_groups.py::test_a_pattern_matches_topics_created_later
        groups/test_consumer_groups.py::test_a_silent_member_is_removed_after_its_session
        groups/test_assignors.py::test_every_partition_once_and_only_to_subscribers""",
    "KIP-890: partitions announced by the write, an epoch per transaction, late ends": """
        transactions/test_broker.py::test_t2_a_partition_outside_of_the_transaction_is_not_written_to
        transactions/test_state.py::test_version_2_an_end_raises_the_epoch_and_its_retry_says_the_same
        transactions/test_broker.py::test_p3_version_2_begins_with_sequence_zero
        log/test_transactions.py::test_t4_a_late_marker_of_version_2_does_not_end_the_next_transaction""",
    "DescribeTopicPartitions, DescribeCluster": """
        api/test_metadata.py::test_describe_topic_partitions_pages_show_everything_once
        api/test_metadata.py::test_describe_topic_partitions_names_what_is_missing
        api/test_metadata.py::test_describe_cluster_is_about_brokers""",
    "IncrementalAlterConfigs: set, delete, append, subtract": """
        api/test_topics.py::test_incremental_changes_apply_at_once_and_survive_a_restart
        api/test_topics.py::test_refused_changes_change_nothing""",
    "DescribeConfigs: everything with its source, brokers by id": """
        api/test_topics.py::test_describe_configs_gives_every_configuration_with_its_source
        api/test_topics.py::test_the_topic_configurations_are_those_of_kafka_4_3""",
    "DeleteRecords": "api/test_offsets.py::test_delete_records_moves_the_start_for_good",
    "OffsetDelete, DeleteGroups": """
        groups/test_group_apis.py::test_what_live_members_read_is_not_deleted
        groups/test_coordinator.py::test_delete_offsets
        groups/test_coordinator.py::test_delete
        transactions/test_broker.py::test_t6_an_open_transaction_does_not_restore_deleted_offsets""",
    "CreateTopics: defaults, dry runs, configurations and id in the answer, replicas": """
        api/test_topics.py::test_a_created_topic_is_answered_with_its_id_and_configuration
        api/test_topics.py::test_create_topics_by_version
        api/test_topics.py::test_a_topic_that_cannot_be_created_is_refused_with_a_reason
        api/test_topics.py::test_assignments_twins_and_dry_runs""",
}


@pytest.mark.parametrize("rule", RULES)
def test_each_line_has_its_tests(rule):
    for test in RULES[rule].split():
        file, name = test.split("::")
        assert re.search(rf"\b(def )?{name}( =|\()", (TESTS / file).read_text()), f"{rule}: {test} is gone"
