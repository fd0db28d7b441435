"""Requests are timed in whichever way they are answered, and gathering does not hold up the event loop."""

import asyncio
import base64
import functools
import socket
import ssl
import urllib.error
import urllib.request
from time import perf_counter, thread_time

import pytest

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.metrics.access import Access
from headrace.broker.metrics.endpoint import MetricsEndpoint
from headrace.broker.metrics.model import Gathering, HistogramValue, Metric, MetricKind, Metrics
from headrace.broker.metrics.requests import BOUNDS, REQUEST_SECONDS, RequestMeter
from headrace.broker.net.reply import CloseConnection, Peer, Pending
from headrace.broker.requests.declaration import ApiDeclaration
from headrace.broker.security.principal import ANONYMOUS, Session
from headrace.broker.security.requirement import public
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse
from headrace.protocol.messages.produce import ProduceRequest, ProduceResponse
from simulator.certificates import identity
from simulator.direct import direct_broker

PEER = Peer(1, "127.0.0.1", 1, "PLAINTEXT", Session(ANONYMOUS, "PLAINTEXT"))


def declaration(request, response):
    return ApiDeclaration(request, response, lambda context, message: None, public())


def in_loop(test):
    """Run an asynchronous test."""

    @functools.wraps(test)
    def run(**fixtures):
        asyncio.run(test(**fixtures))

    return run


async def measured(meter):
    found = Gathering()
    await meter.collect(found)
    return {labels[0]: value for labels, value in found.values.get(REQUEST_SECONDS.name, {}).items()}


@in_loop
async def test_answers_at_once_and_later_count_and_closed_connections_do_not():
    pending = Pending(asyncio.sleep(0.02), lambda outcome: [b"late"])

    def answer(peer, frame):
        if frame[2:] == b"bad":
            raise CloseConnection("bad")
        return pending if frame[2:] == b"later" else [b"now"]

    meter = RequestMeter(
        answer, [declaration(ProduceRequest, ProduceResponse), declaration(MetadataRequest, MetadataResponse)]
    )
    assert await measured(meter) == {}
    assert meter(PEER, b"\x00\x03now") == [b"now"]
    assert meter(PEER, b"\x27\x0fnow") == [b"now"]  # of no declared API
    with pytest.raises(CloseConnection):
        meter(PEER, b"\x00\x03bad")
    later = meter(PEER, b"\x00\x00later")
    outcome = asyncio.ensure_future(later.outcome)
    await outcome
    assert set(await measured(meter)) == {"Metadata"}
    assert later.finish(outcome) == [b"late"]
    found = await measured(meter)
    assert {api: sum(value.counts) for api, value in found.items()} == {"Metadata": 1, "Produce": 1}
    assert found["Produce"].total >= 0.02
    assert sum(found["Produce"].counts[: BOUNDS.index(0.01) + 1]) == 0


def test_declarations_and_values_are_checked():
    with pytest.raises(ValueError, match="_total"):
        Metric("headrace_x", MetricKind.COUNTER, "x")
    metric = Metric("headrace_x", MetricKind.GAUGE, "x", ("topic",))
    with pytest.raises(ValueError, match="labels"):
        Gathering().put(metric, 1)
    metrics = Metrics()

    async def nothing(gathering):
        pass

    metrics.add([metric], nothing)
    with pytest.raises(ValueError, match="twice"):
        metrics.add([metric], nothing)


@in_loop
async def test_gathering_goes_in_turns():
    """Other tasks run between two turns of the gathering: none of its turns is long."""
    metric = Metric("headrace_x", MetricKind.GAUGE, "x", ("number",))
    turns = 0

    async def collect(gathering):
        for number in range(60):
            begin = perf_counter()
            while perf_counter() - begin < 0.0002:
                pass
            gathering.put(metric, 1, str(number))
            await gathering.breathe()

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    metrics = Metrics()
    metrics.add([metric], collect)
    other = asyncio.create_task(count_turns())
    found = await metrics.gather()
    other.cancel()
    assert len(found["headrace_x"]) == 60
    assert turns >= 15


@in_loop
async def test_a_scrape_is_prometheus_text_and_an_address_in_use_is_said():
    gauge = Metric("headrace_x", MetricKind.GAUGE, "x of a topic", ("topic",))
    counter = Metric("headrace_y_total", MetricKind.COUNTER, "y")
    histogram = Metric("headrace_z_seconds", MetricKind.HISTOGRAM, "z")

    async def collect(gathering):
        for number in range(100):
            gathering.put(gauge, number, f't"{number}')
        gathering.put(counter, 3)
        gathering.put(histogram, HistogramValue((0.1, 1.0), (2, 1, 1), 3.5))

    metrics = Metrics()
    metrics.add([gauge, counter, histogram], collect)
    endpoint = MetricsEndpoint(metrics, "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{endpoint.port}/metrics"
        lines = (await asyncio.to_thread(scrape, url)).splitlines()
        with pytest.raises(ConfigError, match=rf"cannot serve metrics on 127.0.0.1:{endpoint.port}"):
            MetricsEndpoint(metrics, "127.0.0.1", endpoint.port)
    finally:
        await asyncio.to_thread(endpoint.close)
    assert "# HELP headrace_x x of a topic" in lines
    assert 'headrace_x{topic="t\\"99"} 99.0' in lines
    assert "headrace_y_total 3.0" in lines
    assert 'headrace_z_seconds_bucket{le="0.1"} 2.0' in lines
    assert 'headrace_z_seconds_bucket{le="+Inf"} 4.0' in lines
    assert "headrace_z_seconds_count 4.0" in lines
    assert "headrace_z_seconds_sum 3.5" in lines
    assert any(line.startswith("process_cpu_seconds_total ") for line in lines)


def scrape(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


@in_loop
async def test_topics_in_and_out(tmp_path):
    """Bytes and records of a plain topic are counted when they are produced and fetched; duplicates are not."""
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("clicks", 2)
        await broker.produce("clicks", [b"a", b"b", b"c"])
        for _ in range(2):
            await broker.produce(
                "clicks", [b"d"], partition=1, producer_id=7, producer_epoch=0, base_sequence=0
            )
        await broker.fetch("clicks")
        found = await broker.context.metrics.gather()
        size = sum(each.log.size_bytes for each in broker.context.replicas.partitions("clicks"))
        first = broker.context.replicas.partition("clicks", 0).log.size_bytes
        assert found["headrace_topic_records_in_total"] == {("clicks",): 4}
        assert found["headrace_topic_bytes_in_total"] == {("clicks",): size}
        assert found["headrace_topic_records_out_total"] == {("clicks",): 3}
        assert found["headrace_topic_bytes_out_total"] == {("clicks",): first}
        assert found["headrace_log_size_bytes"] == {("clicks",): size}
        assert found["headrace_partitions"] == {(): 2}
        assert found["headrace_offline_partitions"] == {(): 0}


class Stepped:
    """Run a coroutine and keep the CPU seconds of each of its steps on the event loop."""

    def __init__(self, coroutine):
        self._steps = coroutine.__await__()
        self.costs = []

    def __await__(self):
        while True:
            begin = thread_time()
            try:
                waiting = self._steps.send(None)
            except StopIteration as end:
                return end.value
            finally:
                self.costs.append(thread_time() - begin)
            yield waiting


@in_loop
async def test_no_turn_is_long_with_many_partitions(tmp_path):
    """With all passes over the partitions in one piece the longest turn took 8 ms of CPU; now about half a
    millisecond.
    """
    async with direct_broker(tmp_path) as broker:
        for number in range(2):
            await broker.create_topic(f"t{number}", 10_000)
        longest = []
        for _ in range(3):
            gathering = Stepped(broker.context.metrics.gather())
            found = await gathering
            assert found["headrace_partitions"] == {(): 20_000}
            longest.append(max(gathering.costs))
        assert min(longest) < 0.004, longest


def answer_to(url: str, header: str | None = None, context: ssl.SSLContext | None = None) -> int:
    request = urllib.request.Request(url, headers={} if header is None else {"Authorization": header})
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            assert b"process_cpu_seconds_total" in answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code if error.headers.get_all("WWW-Authenticate") else 0


async def test_metrics_need_the_configured_credentials() -> None:
    basic = base64.b64encode(b"ann:pencil").decode()
    both = Access(credentials="ann:pencil", token="a.b.c")
    cases = (
        (
            both,
            {None: 401, f"Basic {basic}": 200, "Bearer a.b.c": 200, "bearer a.b.c": 200, "Basic a.b.c": 401},
        ),
        (
            Access(token="a.b.c"),
            {f"Basic {basic}": 401, "Bearer a.b": 401, "Bearer": 401, "Bearer \xe4": 401},
        ),
        (Access(credentials="ann:pencil"), {f"Bearer {basic}": 401, f"Basic {basic}": 200}),
        (Access(), {None: 200}),
    )
    for access, answers in cases:
        assert "pencil" not in repr(access)
        endpoint = MetricsEndpoint(Metrics(), "127.0.0.1", 0, access)
        try:
            url = f"http://127.0.0.1:{endpoint.port}/metrics"
            for header, status in answers.items():
                assert await asyncio.to_thread(answer_to, url, header) == status, header
        finally:
            await asyncio.to_thread(endpoint.close)


async def test_metrics_go_over_tls_with_the_certificate_that_is_there_now(tmp_path) -> None:
    authorities = [identity("first"), identity("second")]
    place = identity("server", authorities[0]).write(tmp_path, "server")
    config = BrokerConfig.load(
        {
            "metrics.security.protocol": "SSL",
            "metrics.bearer.token": "a.b.c",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(place),
        },
        None,
    )
    assert "a.b.c" not in str(Access.configured(config))
    endpoint = MetricsEndpoint(Metrics(), "127.0.0.1", 0, Access.configured(config))
    try:
        assert endpoint.scheme == "https"
        url = f"https://127.0.0.1:{endpoint.port}/metrics"
        with socket.create_connection(
            ("127.0.0.1", endpoint.port)
        ):  # a silent client does not hold up others
            for number, authority in enumerate(authorities):
                if number:
                    renewed = identity("server", authority).write(tmp_path, "renewed")
                    renewed.rename(place)
                trusting = ssl.create_default_context(cadata=authority.certificate_pem)
                assert await asyncio.to_thread(answer_to, url, "Bearer a.b.c", trusting) == 200
                assert await asyncio.to_thread(answer_to, url, None, trusting) == 401
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            await asyncio.to_thread(answer_to, url, None, ssl.create_default_context())
    finally:
        await asyncio.to_thread(endpoint.close)


def test_settings_of_metrics_that_make_no_sense_are_named() -> None:
    with pytest.raises(ConfigError, match=r"metrics\.security\.protocol: use PLAINTEXT or SSL"):
        BrokerConfig.load({"metrics.security.protocol": "TLS"}, None)
    with pytest.raises(ConfigError, match=r"metrics\.basic\.auth\.user\.info: write USER:PASSWORD") as caught:
        BrokerConfig.load({"metrics.basic.auth.user.info": "secret"}, None)
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"neither ssl\.keystore\.location nor ssl\.keystore\.key is set"):
        Access.configured(BrokerConfig.load({"metrics.security.protocol": "SSL"}, None))
