"""The console: a web page and a REST interface over the table client, in a process of its own (`headrace console`).

| file | what |
|---|---|
| `app.py` | the ASGI application: routes, authentication, headers of answers |
| `routes.py` | endpoints, declared by the functions that answer, and OpenAPI computed from them |
| `cluster.py` | overview, plots, brokers, the lake, refused records |
| `topics.py` | topics and their records |
| `groups.py` | consumer groups |
| `tables.py` | tables: rows by key, changes, writes, SQL |
| `tails.py` | live tails of topics and tables, with events of a limited size |
| `wanted.py` | the records that a request asks for |
| `running.py` | work that ends with its reader, or after a time limit |
| `rights.py` | users, rights, ACLs |
| `quotas.py` | client quotas |
| `rest.py` | requests to other programs |
| `registry.py` | a schema registry: its pages, and schemas by number |
| `decoding.py`, `protobuf.py` | keys and values as texts by their schema |
| `connectors.py` | Kafka Connect |
| `values.py` | values as JSON |
| `history.py` | rates, sizes, lags and loads over time |
| `ring.py` | the numbers of an hour and a day, in a file of a fixed size |
| `assets/` | the page, without a build step or external files: `console.js` has the pages, `vendor/` the libraries |
"""
