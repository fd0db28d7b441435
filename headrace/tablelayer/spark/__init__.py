"""Tables in Spark: the data source `headrace`, sessions, lookup joins, delta joins, reads of lake and log together.

`headrace.spark` names what programs use. An executor imports only the modules that it runs.
"""
