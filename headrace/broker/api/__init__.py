"""One module per API group: a handler and its declaration."""
