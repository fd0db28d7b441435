"""Arrow Flight SQL: tables and topics for its clients (ADBC, JDBC and ODBC drivers and their tools).

`FlightSql` (`tablelayer.flight.server`) serves it beside the console, over the console's connection. It only reads.
"""
