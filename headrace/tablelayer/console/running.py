"""Work of requests in threads, which is stopped when its reader goes, after a time limit, and at the end."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from headrace.tablelayer.client import stopping
from headrace.tablelayer.console.routes import RequestError

T = TypeVar("T")

QUERY_SECONDS: Final = 60.0
QUERIES_MAX: Final = 4
"""Queries at a time. Further ones wait for WAIT_SECONDS."""
WAIT_SECONDS: Final = 5.0
FINISH_SECONDS: Final = 0.3
_LOOK_SECONDS: Final = 0.05


class Running:
    """The running work of one console, on its event loop."""

    def __init__(self, query_seconds: float = QUERY_SECONDS) -> None:
        """`query_seconds` is the time limit of everything that only reads; 0: none."""
        self._seconds = query_seconds or None
        self._queries = 0
        self._stops: set[stopping.Stop] = set()
        self._is_ending = False
        self._waiting: set[asyncio.Future[None]] = set()
        self._finishing: set[asyncio.Task[None]] = set()

    async def read(self, request: Request, work: Callable[[], T], *, is_query: bool = False) -> T:
        """Run work that only reads. Raises its error, and RequestError if it was stopped or cannot begin."""
        if is_query:
            await self._wait_for_turn()
        stop = self.stop()
        with stopping.running(stop):
            working = asyncio.ensure_future(run_in_threadpool(work))
        self._queries += is_query

        def ended(done: asyncio.Future[T]) -> None:
            self._queries -= is_query
            self.forget(stop)
            if stop.is_set and not done.cancelled() and (error := done.exception()) is not None:
                # Its frames hold DuckDB's objects, whose native part complains if they outlive the process.
                traceback.clear_frames(error.__traceback__)

        working.add_done_callback(ended)
        gone = asyncio.ensure_future(_gone(request))
        ending = asyncio.get_running_loop().create_future()
        self._waiting.add(ending)
        try:
            await asyncio.wait(
                {working, gone, ending}, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            gone.cancel()
            self._waiting.discard(ending)
            if not working.done():
                self._end(stop, working)
        if working.done() and not stop.is_set:
            return await working
        if self._is_ending:
            raise RequestError("the console is stopping", HTTPStatus.SERVICE_UNAVAILABLE)
        raise RequestError(
            f"stopped after {self._seconds:g} s, the console's time limit: --query-seconds changes it"
            if self._seconds is not None
            else "stopped",
            HTTPStatus.GATEWAY_TIMEOUT,
        )

    async def _wait_for_turn(self) -> None:
        deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
        while self._queries >= QUERIES_MAX:
            if asyncio.get_running_loop().time() >= deadline:
                raise RequestError(
                    f"{QUERIES_MAX} queries are running, which is the limit: try again later",
                    HTTPStatus.TOO_MANY_REQUESTS,
                )
            await asyncio.sleep(_LOOK_SECONDS)

    def stop(self) -> stopping.Stop:
        """Return a `Stop` that is set when the console ends; `forget` it afterwards."""
        stop = stopping.Stop()
        self._stops.add(stop)
        if self._is_ending:
            stop.set()
        return stop

    def forget(self, stop: stopping.Stop) -> None:
        self._stops.discard(stop)

    def end(self) -> None:
        """Stop everything: the console ends."""
        self._is_ending = True
        for stop in list(self._stops):
            stop.set()
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def finish(self) -> None:
        """Stop everything, and wait for the work that was stopped, for FINISH_SECONDS at most."""
        self.end()
        if self._finishing:
            await asyncio.wait(set(self._finishing), timeout=FINISH_SECONDS)

    def _end(self, stop: stopping.Stop, working: asyncio.Future[T]) -> None:
        """Stop work, and see to it that it ends. Its outcome is of no interest."""

        async def insist() -> None:
            while not working.done():
                stop.set()
                await asyncio.wait({working}, timeout=_LOOK_SECONDS)

        stop.set()
        task = asyncio.ensure_future(insist())
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)


async def _gone(request: Request) -> None:
    """Wait until the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
