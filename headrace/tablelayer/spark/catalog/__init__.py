"""Spark's catalog over tables, for SQL: `spark.sql.catalog.headrace=headrace.spark.HeadraceCatalog`.

Spark needs a catalog in Java. Ours (`java/`) implements Spark's interfaces and no more. It forwards Spark's questions
and commands as JSON to a helper process (`helper`) over a local socket, and rows travel between the two as Arrow. So
there is one table client, and columns, filters, limits and exactly-once writes are those of the data source
(`tablelayer.spark.source`). A catalog can do more than a Python source: Spark passes it the needed columns and filters,
reads Arrow directly, and writes changes by key (UPDATE, DELETE, MERGE).

    helper        the process: one per JVM, which forks one for each connection
    statements    databases and tables: Spark's descriptions and their answers
    rows          the rows of a scan
    streams       the rows of a stream
    writes        the writes of a statement or a micro-batch
    requests      what all requests share
    jar           the Java part, compiled
"""
