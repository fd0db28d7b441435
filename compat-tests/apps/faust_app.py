"""A Faust application: see README.md."""

import sys

import faust

bootstrap, source, target = sys.argv[1:4]
app = faust.App(
    f"faust-{source}",
    broker=f"kafka://{bootstrap}",
    consumer_auto_offset_reset="earliest",
    topic_disable_leader=True,
    web_enabled=False,
    broker_session_timeout=6.0,
    broker_heartbeat_interval=1.0,
)
records = app.topic(source, value_serializer="json")
rows = app.topic(target, value_serializer="json")


@app.agent(records)
async def double(stream):
    async for row in stream:
        await rows.send(value={"k": row["k"], "doubled": 2 * row["n"]})


if __name__ == "__main__":
    sys.argv = [sys.argv[0], "worker", "--without-web", "--loglevel", "warn"]
    app.main()
