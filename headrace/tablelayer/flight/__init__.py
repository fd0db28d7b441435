"""Arrow Flight SQL: tables and topics for whoever speaks it (ADBC, the JDBC and ODBC drivers, and tools on them).

`FlightSql` (`tablelayer.flight.server`) serves it beside the console, over the console's connection; it only reads.
"""
