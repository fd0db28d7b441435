"""Write COMPATIBILITY.md: the advertised versions, those that clients used in the last run, and the outcomes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from foreign.tap import Usage, messages

from headrace.protocol.errors import ErrorCode

PATH = Path(__file__).resolve().parent.parent / "COMPATIBILITY.md"
PRIVATE_KEYS_FROM = 10_000
IN_PROCESS = {"kafka-python": "kafka-python", "rdkafka": "confluent-kafka", "aiokafka": "aiokafka"}
"""Prefixes of the client ids that the Python clients choose. They read the other clients' records."""

HEAD = """# Compatibility

Written by `make compat` from the registry of APIs and from what the clients did in its last run. Do not edit.

## Clients and scenarios

`foreign/README.md` describes the scenarios. `passed` means that answers and data were correct, and that every other
client's records were read back byte for byte.

"""
MIDDLE = """
## APIs by version by client

A cell has the version that the client chose in the scenarios above, or several versions if parts of the client choose
differently. A number in brackets counts answers with an error code; the last table explains the codes. An empty cell
means that the client did not send the request. The Python clients only read and check here. Their own scenarios are in
clients/, groups/ and transactions/, which are part of `make test`; those of Kafka's command-line tools are in tools/.

"""
ERRORS = """
## Error codes seen

Scenarios cause some of these errors on purpose: a topic that does not exist yet, a transaction that is aborted. Others
are a normal part of a protocol: a member that must rejoin.

"""


def render(
    advertised: Mapping[int, tuple[int, int]],
    outcomes: Mapping[tuple[str, str], str],
    usages: Mapping[tuple[str, int, int], Usage],
) -> str:
    """Return the document: `advertised` by API key, `outcomes` by (client, scenario), `usages` by (client, key,
    version).
    """
    clients = list(dict.fromkeys(client for client, _ in outcomes))
    scenarios = list(dict.fromkeys(scenario for _, scenario in outcomes))
    rows = [[client, *(outcomes.get((client, scenario), "") for scenario in scenarios)] for client in clients]
    text = HEAD + _table(["client", *scenarios], rows) + MIDDLE
    used: dict[tuple[str, int], dict[int, Usage]] = defaultdict(dict)
    errors: dict[int, set[str]] = defaultdict(set)
    for (client, key, version), usage in usages.items():
        client = next((name for start, name in IN_PROCESS.items() if client.startswith(start)), client)
        before = used[client, key].setdefault(version, Usage())
        before.errors.update(usage.errors)
        for code in usage.errors:
            errors[code].add(_name(key))
    columns = [*clients, *IN_PROCESS.values()]
    body = [
        [
            f"{key} {_name(key)}",
            _range(low, high),
            *(_cell(used.get((client, key), {})) for client in columns),
        ]
        for key, (low, high) in sorted(advertised.items())
        if key < PRIVATE_KEYS_FROM
    ]
    text += _table(["API", "advertised", *columns], body) + ERRORS
    return text + _table(
        ["code", "in answers to"],
        [
            [f"{code} {ErrorCode(code).name}", ", ".join(sorted(apis))]
            for code, apis in sorted(errors.items())
        ],
    )


def _name(key: int) -> str:
    known = messages()
    return known[key][0].__name__.removesuffix("Request") if key in known else str(key)


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def _cell(versions: Mapping[int, Usage]) -> str:
    if not versions:
        return ""
    errors: Counter[int] = sum((usage.errors for usage in versions.values()), Counter())
    chosen = ", ".join(str(version) for version in sorted(versions))
    return f"{chosen} ({errors.total()})" if errors else chosen


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["-"] * len(head), *rows]
    return "".join("|" + "|".join(line) + "|\n" for line in lines)


def advertised_in(text: str) -> dict[int, tuple[int, int]]:
    """Return the version ranges that a document names as advertised, by API key."""
    table = text.split("## APIs by version by client")[1].split("## Error codes seen")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line[1:2].isdigit()]
    ranges = {int(name.split()[0]): versions.split("-") for name, versions in rows}
    return {key: (int(ends[0]), int(ends[-1])) for key, ends in ranges.items()}
