"""A Quix Streams application: see README.md."""

import sys

from quixstreams import Application

bootstrap, source, target = sys.argv[1:4]
app = Application(
    broker_address=bootstrap,
    consumer_group=f"quix-{source}",
    auto_offset_reset="earliest",
    processing_guarantee="at-least-once",
    use_changelog_topics=False,
    loglevel="WARNING",
)
rows = app.dataframe(app.topic(source, value_deserializer="json"))
rows = rows.apply(lambda row: {"k": row["k"], "doubled": 2 * row["n"]})
rows.to_topic(app.topic(target, value_serializer="json", key_serializer="str"), key=lambda row: str(row["k"]))
app.run()
