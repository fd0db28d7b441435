"""The client's settings, each with the reason for its default."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Timeouts, sizes and limits of a client. Immutable and picklable, so that it can go to Spark's executors.

    Times are in milliseconds, sizes in bytes.
    """

    client_id: str = "headrace-client"
    #: Timeout of one attempt to open a connection. A local server answers in under one millisecond; a remote
    #: one needs a few round trips.
    connect_timeout_ms: int = 5_000
    #: Timeout of one answer. Kafka clients wait 30 s; a shorter one would mistake a busy server for a dead one.
    request_timeout_ms: int = 30_000
    #: Timeout of a whole call with its retries. It is longer than a restart of the server.
    delivery_timeout_ms: int = 120_000
    #: First and longest pause between attempts. It doubles each time and varies by 50 % so that clients do
    #: not retry at the same moment.
    retry_backoff_ms: int = 20
    retry_backoff_max_ms: int = 1_000
    #: Age at which metadata is fetched again even without an error.
    metadata_max_age_ms: int = 300_000
    #: Size of a write batch before compression, about. It is large enough to amortise the fixed cost of a
    #: request and of each compressed buffer, small enough that filters skip most of a table. Fluss's
    #: client.writer.batch-size.
    batch_size_bytes: int = 2 << 20
    #: Write batches in flight per bucket. The server can deduplicate a writer's last five batches only.
    max_in_flight: int = 5
    #: Maximum of encoded data that waits to be acknowledged. A writer that is further ahead waits.
    buffer_size_bytes: int = 64 << 20
    #: "all": a write returns when it is durable and visible to lookups. "1": after the leader's append.
    acks: str = "all"
    #: Time that the server may hold a scan request while it has no rows for it.
    scan_max_wait_ms: int = 500
    #: Maximum size of a scan answer over all buckets.
    scan_max_size_bytes: int = 16 << 20
    #: Maximum size of one bucket's part of a scan answer. The next answer is on its way while one is decoded.
    #: Kafka's max.partition.fetch.bytes.
    scan_max_bucket_size_bytes: int = 4 << 20
    #: "full": a read of a whole tiered table takes from the lake what has left the log. "log": the log alone.
    scan_mode: str = "full"
    #: Whether a write creates the partitions that its rows belong to. Fluss's
    #: client.writer.dynamic-create-partition.enabled.
    dynamic_create_partition: bool = True
    #: Buckets of rows of a log table without a bucket key. "sticky": one bucket until a batch is full, then the
    #: next. "round_robin": each row goes to the next bucket, which makes smaller batches. Fluss's
    #: client.writer.bucket.no-key-assigner.
    no_key_assigner: str = "sticky"
    #: Interval at which a scan of a whole partitioned table looks for added and dropped partitions, and writers and
    #: scans of a log table for added buckets.
    partition_discovery_ms: int = 1_000
    #: Keys in one lookup request. It limits the answer and lets the server work on several requests at a time.
    lookup_batch_count: int = 16_384
    #: Replicas that answer lookups and prefix lookups. "leader" has everything that was acknowledged. "any"
    #: is the replica on `client_rack`, or else a random one: lookups are spread over the brokers and work
    #: while a bucket has no leader. A follower's answer is stale by at most `LookupResult.staleness_ms`, in a
    #: quiet cluster about a second. Two replicas may be at different times. Kafka's KIP-392 for keys.
    lookup_from: str = "leader"
    #: With "any": a replica that is staler does not answer, and the leader is asked. Kafka's
    #: replica.lag.time.max.ms: a follower that is further behind is not in sync.
    lookup_max_staleness_ms: int = 30_000
    #: The client's rack, named as in the brokers' `broker.rack`. Kafka's client.rack.
    client_rack: str = ""

    def __post_init__(self) -> None:
        if self.acks not in ("all", "1"):
            raise ValueError(f"acks is {self.acks!r}: use 'all' (the default) or '1'")
        if self.scan_mode not in ("full", "log"):
            raise ValueError(f"scan_mode is {self.scan_mode!r}: use 'full' (the default) or 'log'")
        if self.no_key_assigner not in ("sticky", "round_robin"):
            raise ValueError(
                f"no_key_assigner is {self.no_key_assigner!r}: use 'sticky' (the default) or 'round_robin'"
            )
        if self.lookup_from not in ("leader", "any"):
            raise ValueError(f"lookup_from is {self.lookup_from!r}: use 'leader' (the default) or 'any'")
        if not 0 <= self.lookup_max_staleness_ms < 1 << 31:
            raise ValueError(
                f"lookup_max_staleness_ms is {self.lookup_max_staleness_ms}: give 0 to {(1 << 31) - 1} milliseconds"
            )
        if not 1 <= self.max_in_flight <= 5:
            raise ValueError(
                f"max_in_flight is {self.max_in_flight}: the server deduplicates at most 5 batches per bucket"
            )

    @property
    def required_acks(self) -> int:
        """`acks` as requests carry it: -1 for all, else the number."""
        return -1 if self.acks == "all" else int(self.acks)
