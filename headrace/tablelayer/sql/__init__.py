"""SQL over the table client: statements, plans of queries, import and export of files.

`Session` runs statements one after the other (`tablelayer.sql.session`) for the command, `connection.sql`, the DB-API
module and Flight SQL. DuckDB does what the server cannot.
"""
