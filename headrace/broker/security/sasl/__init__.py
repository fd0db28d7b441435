"""Authentication of clients: SASL mechanisms, the states of a connection, users and delegation tokens."""
