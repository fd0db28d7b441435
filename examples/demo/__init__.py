"""The whole pipeline on real data: tables, Kafka clients, Spark, the lake, and a server that is killed."""
