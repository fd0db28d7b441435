"""`GET /metrics` for Prometheus, served by its own client library in separate threads; and health.

Values are collected on the broker's event loop, in short turns (`model.py`). The thread of the request makes the text
and releases the interpreter after every few lines. So neither makes a client of the broker wait, nor does the TLS
handshake. Without credentials every client that can connect may read: bind the endpoint to an address that only the
monitoring reaches, or set credentials (`access.py`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.metrics.access import Access
from headrace.broker.metrics.health import Health, Stage, paths
from headrace.broker.metrics.model import HistogramValue, Metric, MetricKind, Metrics, Values

GATHER_SECONDS_MAX: Final = 10.0
REQUEST_SECONDS_MAX: Final = 30.0
"""Seconds after which a peer that sends or receives nothing is disconnected."""
THREADS_MAX: Final = 50
"""Maximum number of connections at a time: each has a thread of the broker's process. A further one is closed."""
_LINES_PER_TURN: Final = 32
_FAMILIES: Final = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.HISTOGRAM: HistogramMetricFamily,
}


class MetricsEndpoint:
    """An HTTP server for one broker. Make it on the broker's event loop; `close` it before the loop ends."""

    def __init__(
        self,
        metrics: Metrics,
        host: str,
        port: int,
        access: Access | None = None,
        health: Health | None = None,
    ) -> None:
        """Listen. `health` None: the broker serves already. Raises ConfigError when the address cannot be used."""
        registry = CollectorRegistry(auto_describe=False)
        PlatformCollector(registry=registry)
        ProcessCollector(registry=registry)
        loop = asyncio.get_running_loop()
        registry.register(_Gatherer(metrics, loop))
        access = access or Access()
        application = paths(health or Health(loop, Stage.READY), access.guard(make_wsgi_app(registry)))
        kind = type("Server", (_Server,), {"address_family": _family_of(host), "context": access.context})
        try:
            self._server: WSGIServer = make_server(host, port, application, kind, _Silent)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"cannot serve metrics on {host}:{port}: {reason}; choose another address"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        self.scheme = "http" if access.context is None else "https"
        self.host, self.port = str(self._server.server_address[0]), int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening. Blocks for at most half a second."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=1)


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Do nothing: scrapes are not logged."""


class _Server(ThreadingMixIn, WSGIServer):
    """A server with one thread for each request. `context` returns the TLS context, None: without TLS."""

    daemon_threads = True
    request_queue_size = 128
    """With Python's 5, connections that come at once wait a second each, those of health checks too."""
    context: Callable[[], ssl.SSLContext] | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._places = threading.Semaphore(THREADS_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(REQUEST_SECONDS_MAX)
        context = type(self).context
        if context is None:
            super().finish_request(request, client_address)
            return
        try:
            with context().wrap_socket(request, server_side=True) as stream:
                super().finish_request(stream, client_address)
        except OSError:
            pass  # no TLS, or the peer is gone

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: a scraper that does not wait for the answer causes no traceback."""


def _family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class _Gatherer:
    """A collector of prometheus_client; called in its threads."""

    def __init__(self, metrics: Metrics, loop: asyncio.AbstractEventLoop) -> None:
        self._metrics = metrics
        self._loop = loop
        self._turn = threading.Lock()

    def describe(self) -> Iterable[Family]:
        return ()

    def collect(self) -> Iterator[Family]:
        with self._turn:
            asked = asyncio.run_coroutine_threadsafe(self._metrics.gather(), self._loop)
            try:
                found = asked.result(GATHER_SECONDS_MAX)
            except (TimeoutError, CancelledError):
                asked.cancel()
                return
        for metric in self._metrics.declared:
            values = found.get(metric.name)
            if values:
                yield _family(metric, values)


class _Paced(list[Any]):
    """A list of samples that lets other threads run while it is written."""

    def __iter__(self) -> Iterator[Any]:
        for index, sample in enumerate(super().__iter__()):
            if index % _LINES_PER_TURN == _LINES_PER_TURN - 1:
                time.sleep(0)
            yield sample


def _family(metric: Metric, values: Values) -> Any:
    family: Any = _FAMILIES[metric.kind](metric.name, metric.doc, labels=metric.labels)
    family.samples = _Paced()
    for labels, value in sorted(values.items()):
        if isinstance(value, HistogramValue):
            family.add_metric(labels, _cumulative(value), value.total)
        else:
            family.add_metric(labels, value)
    return family


def _cumulative(value: HistogramValue) -> list[tuple[str, float]]:
    """Return the cumulative counts that Prometheus expects: of all values up to each bound."""
    buckets: list[tuple[str, float]] = []
    so_far = 0
    for bound, count in zip((*map(str, value.bounds), "+Inf"), value.counts, strict=True):
        so_far += count
        buckets.append((bound, so_far))
    return buckets
