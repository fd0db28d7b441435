"""The pictures of `docs/`: boxes and arrows, drawn into SVG files. `python -m docsite pictures` draws them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from docsite.pages import DOCS

FOLDER = DOCS / "pictures"
_FONT = "font-family='system-ui, sans-serif' font-size='14'"
_INK, _PAPER, _SOFT, _ACCENT = "#33373d", "#ffffff", "#eef2f7", "#d7e8ff"


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle with lines of text, in pixels. `kind` is plain, soft or accent."""

    x: int
    y: int
    width: int
    height: int
    lines: Sequence[str]
    kind: str = "plain"


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow with words beside its middle."""

    x1: int
    y1: int
    x2: int
    y2: int
    words: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    width: int
    height: int
    title: str
    boxes: Sequence[Box] = ()
    arrows: Sequence[Arrow] = ()
    texts: Sequence[tuple[int, int, str]] = field(default_factory=tuple)


def _flow() -> Picture:
    return Picture(
        860,
        330,
        "The writers and readers of a table, and the lake",
        [
            Box(10, 20, 200, 60, ["Kafka producers", "JSON, Avro, Debezium"], "soft"),
            Box(10, 110, 200, 60, ["table client, SQL", "Arrow"], "soft"),
            Box(10, 200, 200, 60, ["Spark", "streaming sink"], "soft"),
            Box(
                310,
                70,
                230,
                140,
                ["headrace serve", "", "one log, two views", "PK tables: state in RocksDB"],
                "accent",
            ),
            Box(640, 20, 210, 60, ["Kafka consumers", "records, groups"], "soft"),
            Box(640, 110, 210, 60, ["lookups, scans, SQL", "columns, filters"], "soft"),
            Box(640, 200, 210, 60, ["Spark", "streams, lookup joins"], "soft"),
            Box(310, 260, 230, 60, ["Apache Iceberg, Paimon", "the lake"]),
        ],
        [
            Arrow(210, 50, 308, 100),
            Arrow(210, 140, 308, 140),
            Arrow(210, 230, 308, 180),
            Arrow(540, 100, 638, 50),
            Arrow(540, 140, 638, 140),
            Arrow(540, 180, 638, 230),
            Arrow(425, 210, 425, 258, "headrace tier"),
            Arrow(540, 300, 745, 262),
        ],
        [(650, 312, "union read: lake and log")],
    )


def _table() -> Picture:
    logs = [
        Box(
            290,
            40 + 90 * i,
            360,
            50,
            [f"bucket {i}: a log with offsets", f"partition {i} of topic shop.orders"],
            "soft",
        )
        for i in range(2)
    ]
    states = [Box(690, 40 + 90 * i, 160, 50, ["state by key", "(PK tables)"], "accent") for i in range(2)]
    return Picture(
        860,
        220,
        "A table is a topic; its buckets are the topic's partitions; a primary-key table has a state beside each log",
        [Box(10, 70, 160, 80, ["table", "shop.orders", "4 columns"]), *logs, *states],
        [
            Arrow(170, 100, 288, 66),
            Arrow(170, 120, 288, 152),
            Arrow(650, 65, 688, 65),
            Arrow(650, 155, 688, 155),
        ],
        [(180, 114, "hash of the key")],
    )


def _changelog() -> Picture:
    changes = ["+I 1 apple 3", "+I 2 pear 5", "-U 1 apple 3", "+U 1 apple 4", "-D 2 pear 5"]
    cells = [
        Box(20 + 160 * i, 70, 150, 50, [change, f"offset {i}"], "soft") for i, change in enumerate(changes)
    ]
    return Picture(
        860,
        250,
        "The changelog of a primary-key table, and what each reader makes of it",
        [
            *cells,
            Box(
                20,
                180,
                380,
                55,
                ["Kafka consumer: values for +I and +U,", "a tombstone for -D; -U is left out"],
            ),
            Box(
                440,
                180,
                390,
                55,
                ["table reader: every change with its kind;", "lookup: the state behind the last one"],
            ),
        ],
        [Arrow(210, 122, 210, 178), Arrow(635, 122, 635, 178)],
        [(20, 40, "upsert 1 apple 3, upsert 2 pear 5, upsert 1 apple 4, delete 2")],
    )


def _lake() -> Picture:
    return Picture(
        860,
        230,
        "Union read: the lake up to the tiered offset, the log from there on",
        [
            Box(
                20,
                60,
                470,
                55,
                ["lake snapshot: everything up to offset 700", "(the offsets are inside of the snapshot)"],
            ),
            Box(
                380,
                140,
                460,
                55,
                ["log of the bucket: offsets 500 to 1,000", "(retention never passes what is not tiered)"],
                "soft",
            ),
            Box(500, 60, 340, 55, ["tail: offsets 700 to 1,000"], "accent"),
        ],
        [Arrow(670, 140, 670, 117)],
        [
            (
                20,
                40,
                "union read = lake + tail, pinned when the query begins; of a key the tail's last change counts",
            )
        ],
    )


PICTURES = {"flow": _flow, "table": _table, "changelog": _changelog, "lake": _lake}


def svg(picture: Picture) -> str:
    """Return the text of the SVG file."""
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {picture.width} {picture.height}' role='img'"
        f" {_FONT} fill='{_INK}'>",
        f"<title>{escape(picture.title)}</title>",
        "<defs><marker id='head' markerWidth='9' markerHeight='9' refX='8' refY='4' orient='auto'>"
        f"<path d='M0,0 L8,4 L0,8 z' fill='{_INK}'/></marker></defs>",
        f"<rect width='100%' height='100%' fill='{_PAPER}'/>",
    ]
    for arrow in picture.arrows:
        parts.append(
            f"<line x1='{arrow.x1}' y1='{arrow.y1}' x2='{arrow.x2}' y2='{arrow.y2}' stroke='{_INK}'"
            " stroke-width='1.5' marker-end='url(#head)'/>"
        )
        if arrow.words:
            x, y = (arrow.x1 + arrow.x2) // 2 + 8, (arrow.y1 + arrow.y2) // 2 - 6
            parts.append(f"<text x='{x}' y='{y}' font-size='12'>{escape(arrow.words)}</text>")
    for box in picture.boxes:
        fill = {"plain": _PAPER, "soft": _SOFT, "accent": _ACCENT}[box.kind]
        parts.append(
            f"<rect x='{box.x}' y='{box.y}' width='{box.width}' height='{box.height}' rx='6' fill='{fill}'"
            f" stroke='{_INK}'/>"
        )
        first = box.y + box.height / 2 - (len(box.lines) - 1) * 9 + 5
        for index, line in enumerate(box.lines):
            weight = " font-weight='600'" if index == 0 and len(box.lines) > 1 else ""
            parts.append(
                f"<text x='{box.x + box.width / 2:g}' y='{first + 18 * index:g}' text-anchor='middle'{weight}>"
                f"{escape(line)}</text>"
            )
    parts += [f"<text x='{x}' y='{y}'>{escape(text)}</text>" for x, y, text in picture.texts]
    return "\n".join([*parts, "</svg>", ""])


def draw() -> None:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(svg(make()), encoding="utf-8")
