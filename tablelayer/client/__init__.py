"""The table client: connection, admin, writer, lookup, scanner."""
