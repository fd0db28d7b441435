"""The console: a web page and a REST interface over the table client, in a process of its own (`headrace console`).

| file | what |
|---|---|
| `app.py` | the ASGI application: routes, who may, what every answer carries |
| `routes.py` | what an endpoint is, and OpenAPI from the declarations |
| `views.py` | what is shown of topics, groups, brokers, the lake |
| `tables.py` | tables: rows by key, changes, writes, SQL |
| `values.py` | values as JSON |
| `history.py` | rates and sizes over time, kept in memory |
| `assets/` | the page: no build step, nothing from elsewhere |
"""
