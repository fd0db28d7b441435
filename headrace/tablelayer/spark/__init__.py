"""Tables in Spark: data source `headrace`, sessions, lookup joins, delta joins, reads of lake and log together.

`headrace.spark` exports the public names. An executor imports only the modules that it runs.
"""
