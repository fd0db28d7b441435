"""The Spark job of `test_pipeline.py`: two streams of one table, exactly once, until the process is killed.

    python pipeline.py SERVER FOLDER

Rows (n, k) of `default.src` go into `default.copy` as they are, and as sums by k into `default.sums`, whose engine
adds: a row that is missing or comes twice shows in either. Checkpoints are in FOLDER; a task is tried up to eight
times.
"""

import sys


def main(server: str, folder: str) -> None:
    from headrace.tablelayer.spark.sessions import session

    spark = session("pipeline", cores=2, memory="768m", extra={"spark.master": "local[2,8]"})

    def source():
        reader = spark.readStream.format("headrace").option("bootstrap.servers", server)
        return reader.option("table", "default.src").option("maxOffsetsPerTrigger", "20000").load()

    def start(frame, table):
        writer = (
            frame.writeStream.format("headrace").option("bootstrap.servers", server).option("table", table)
        )
        return (
            writer.option("checkpointLocation", f"{folder}/{table}")
            .trigger(processingTime="1 second")
            .start()
        )

    start(source(), "default.copy")
    start(source().selectExpr("k", "n AS total"), "default.sums")
    print("running", flush=True)
    spark.streams.awaitAnyTermination()  # raises the exception that ended one


if __name__ == "__main__":
    main(*sys.argv[1:])
