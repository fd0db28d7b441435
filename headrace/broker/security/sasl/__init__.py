"""How a client shows who it is: mechanisms of SASL, the states of a connection, users and delegation tokens."""
