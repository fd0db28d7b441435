"""The paths of the metrics' listener: `/healthz`, `/readyz` and `/metrics`; other paths do not exist.

`/healthz`: 200 if the process is alive. `/readyz`: 200 when clients are served; 503 while the broker starts (and
recovers its logs, for example), while it stops, and when its event loop has not turned for LOOP_SECONDS_MAX. Both are
answered in separate threads, so a blocked loop does not block them. All clients may read them, since they show nothing
else. `/metrics` needs the credentials of `access.py`, and a broker that has started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

from headrace.broker.metrics.access import Wsgi

LOOP_SECONDS_MAX: Final = 2.0


class Stage(StrEnum):
    """Stages of a broker's life, as in `/readyz`."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class Health:
    """`stage` is set by the code that starts and stops the broker, on its event loop; the rest may be read from any
    thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, stage: Stage = Stage.STARTING) -> None:
        self.stage = stage
        self._loop = loop

    def trouble(self, seconds: float = LOOP_SECONDS_MAX) -> str | None:
        """Return the reason why the broker is not ready; None if it is ready. Blocks for at most `seconds`, so it is
        not for the event loop.
        """
        if self.stage is not Stage.READY:
            return self.stage
        turned: Future[None] = Future()
        try:
            self._loop.call_soon_threadsafe(turned.set_result, None)
            turned.result(seconds)
        except RuntimeError:  # the loop is closed
            return Stage.STOPPING
        except TimeoutError:
            return f"the event loop has not turned for {seconds:g} s"
        return None if self.stage is Stage.READY else self.stage


def paths(health: Health, metrics: Wsgi) -> Wsgi:
    """Return the application of the whole listener; `metrics` answers `/metrics`."""

    def alive(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        return _say(environ, start_response, HTTPStatus.OK, "alive")

    def ready(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        trouble = health.trouble()
        status = HTTPStatus.OK if trouble is None else HTTPStatus.SERVICE_UNAVAILABLE
        return _say(environ, start_response, status, trouble or Stage.READY)

    def measured(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if health.stage is not Stage.READY:
            return _say(environ, start_response, HTTPStatus.SERVICE_UNAVAILABLE, health.stage)
        return metrics(environ, start_response)

    at: dict[str, Wsgi] = {"/healthz": alive, "/readyz": ready, "/metrics": measured}

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        found = at.get(environ.get("PATH_INFO", ""))
        if found is None:
            return _say(environ, start_response, HTTPStatus.NOT_FOUND, f"the paths here are {', '.join(at)}")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            headers = [("Allow", "GET, HEAD")]
            return _say(environ, start_response, HTTPStatus.METHOD_NOT_ALLOWED, "GET it", headers)
        return found(environ, start_response)

    return application


def _say(
    environ: dict[str, Any],
    start_response: Callable[..., Any],
    status: HTTPStatus,
    text: str,
    headers: Iterable[tuple[str, str]] = (),
) -> Iterable[bytes]:
    body = f"{text}\n".encode()
    start_response(
        f"{status.value} {status.phrase}",
        [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            *headers,
        ],
    )
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]
