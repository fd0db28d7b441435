"""The network: sockets, TLS and connections, up to requests and their ordered answers."""
