"""Tables: their model, server, clients, SQL, Spark, lake and console."""
