"""`/readyz` while a broker starts, stands still and stops."""

from __future__ import annotations

import asyncio
import threading
import urllib.error
import urllib.request

from headrace.broker.metrics.endpoint import MetricsEndpoint
from headrace.broker.metrics.health import Health, Stage
from headrace.broker.metrics.model import Metrics


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def test_a_broker_is_ready_between_its_start_and_its_stop() -> None:
    health = Health(asyncio.get_running_loop())
    endpoint = MetricsEndpoint(Metrics(), "127.0.0.1", 0, health=health)
    at = f"http://127.0.0.1:{endpoint.port}"
    try:
        for stage in (Stage.STARTING, Stage.STOPPING):
            health.stage = stage
            assert await asyncio.to_thread(get, f"{at}/readyz") == (503, f"{stage}\n")
            assert await asyncio.to_thread(get, f"{at}/metrics") == (503, f"{stage}\n")
            assert await asyncio.to_thread(get, f"{at}/healthz") == (200, "alive\n")
        health.stage = Stage.READY
        assert await asyncio.to_thread(get, f"{at}/readyz") == (200, "ready\n")
        assert (await asyncio.to_thread(get, f"{at}/metrics"))[0] == 200
    finally:
        await asyncio.to_thread(endpoint.close)


async def test_a_loop_that_stands_still_is_not_ready() -> None:
    health = Health(asyncio.get_running_loop(), Stage.READY)
    answers: list[str | None] = []
    asking = threading.Thread(target=lambda: answers.append(health.trouble(0.05)))
    asking.start()
    asking.join()  # on the loop, which comes round to nothing meanwhile
    assert answers == ["the event loop has not turned for 0.05 s"]
    assert await asyncio.to_thread(health.trouble, 60.0) is None


def test_a_loop_that_is_over_is_not_ready() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    assert Health(loop, Stage.READY).trouble() == Stage.STOPPING
