"""SQL over the table client: statements, the ways of queries, rows in and out of files.

`Session` carries out statements one after the other (`tablelayer.sql.session`); the command, `connection.sql`, the
DB-API module and whoever else speaks SQL use it. DuckDB does what the server cannot.
"""
