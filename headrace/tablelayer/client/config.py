"""The client's settings, each with the reason for its default."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """How patient, how big, how many. Immutable and picklable, so that it can travel to Spark's executors.

    Times in milliseconds, sizes in bytes.
    """

    client_id: str = "headrace-client"
    #: One attempt to open a connection. A local server answers in under one; a remote one needs a few round
    #: trips.
    connect_timeout_ms: int = 5_000
    #: One answer. Kafka clients wait 30 s; shorter would mistake a busy server for a dead one.
    request_timeout_ms: int = 30_000
    #: A whole call with its retries. Long enough to sit out a restart of the server.
    delivery_timeout_ms: int = 120_000
    #: First and longest pause between attempts; doubled each time and spread by 50 % so that clients do not
    #: march in step.
    retry_backoff_ms: int = 20
    retry_backoff_max_ms: int = 1_000
    #: Metadata older than this is asked for again even if nobody complained.
    metadata_max_age_ms: int = 300_000
    #: A write batch is cut at about this size before compression: large enough to amortise the fixed cost of
    #: a request and of each compressed buffer, small enough that filters skip most of a table. Fluss's
    #: client.writer.batch-size.
    batch_size_bytes: int = 2 << 20
    #: The server remembers a writer's last five batches per bucket; more in flight could not be deduplicated.
    max_in_flight: int = 5
    #: Encoded data waiting to be acknowledged; a writer that is further ahead waits.
    buffer_size_bytes: int = 64 << 20
    #: "all": durable and visible to lookups when the write returns. "1": after the leader's append.
    acks: str = "all"
    #: How long the server may hold a scan request that has nothing to give.
    scan_max_wait_ms: int = 500
    #: A scan answer, over all buckets.
    scan_max_size_bytes: int = 16 << 20
    #: What one bucket gives to it: the next answer is on its way while one is decoded. Kafka's
    #: max.partition.fetch.bytes.
    scan_max_bucket_size_bytes: int = 4 << 20
    #: Whether a write makes the partition that its rows belong to. Fluss's
    #: client.writer.dynamic-create-partition.enabled.
    dynamic_create_partition: bool = True
    #: How soon a scan of a whole partitioned table sees a partition that was added or dropped.
    partition_discovery_ms: int = 1_000
    #: Keys in one lookup request: bounds the answer, and lets the server work on several at a time.
    lookup_batch_count: int = 16_384
    #: Who answers lookups and prefix lookups: "leader", which has everything that was acknowledged; or "any", the
    #: replica on `client_rack`, or else one of all, so that lookups are spread over the brokers and go on while a
    #: bucket has no leader. What a follower gives is stale by at most `LookupResult.staleness_ms`, in a quiet cluster
    #: about a second; two replicas may be at different times. Kafka's KIP-392 for keys.
    lookup_from: str = "leader"
    #: With "any": what is older a replica does not answer, and the leader is asked. Kafka's replica.lag.time.max.ms: a
    #: follower that is further behind is not in sync.
    lookup_max_staleness_ms: int = 30_000
    #: The rack that the client is on, as `broker.rack` says it of brokers. Kafka's client.rack.
    client_rack: str = ""

    def __post_init__(self) -> None:
        if self.acks not in ("all", "1"):
            raise ValueError(f"acks is {self.acks!r}: use 'all' (the default) or '1'")
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
        """`acks` as the wire writes it: -1 for all, else the number."""
        return -1 if self.acks == "all" else int(self.acks)
