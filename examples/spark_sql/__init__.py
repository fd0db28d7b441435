"""A notebook of Spark SQL over tables: `python -m examples.spark_sql [HOST:PORT]`."""
