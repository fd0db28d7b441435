"""Common parts of all request handlers: the declaration of an API, the context of a request, the cost of answers."""
