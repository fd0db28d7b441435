"""Spark's catalog over tables: `spark.sql.catalog.headrace=headrace.spark.HeadraceCatalog`, and then SQL.

Spark asks for a catalog in Java. Ours (`java/`) is what Spark's interfaces want and no more: it says what Spark wants
to know or do to a process of ours (`helper`), over a local socket, as JSON, and rows go between the two as Arrow.
So there is one client of tables, and columns, filters, limits and exactly-once writes are those of the data source
(`tablelayer.spark.source`), with what a source in Python cannot have: Spark asks a catalog for the columns and filters
it needs, reads Arrow as it is, and writes changes by key (UPDATE, DELETE, MERGE).

    helper        the process: one per JVM, which forks one for each request that is under way
    statements    databases and tables: what Spark says of them and what is answered
    rows          what a scan reads
    streams       what a stream reads
    writes        what a statement or a micro-batch writes
    requests      what all of them are given
    jar           the Java part, compiled
"""
