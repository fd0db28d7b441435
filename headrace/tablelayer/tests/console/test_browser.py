"""The console in a real Chromium: every page at two widths and in both themes, by keyboard, with hostile names and
values, live at 10,000 records a second. Skipped with a reason where there is no Chromium.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from headrace.tablelayer.client import connect
from headrace.tablelayer.client.admin.produce import OutgoingRecord
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.tests.cli.conftest import ROOT, Served
from headrace.tablelayer.tests.console.outside import KafkaConnect, SchemaRegistry
from headrace.tablelayer.tests.console.outside import served as served_program

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)"
    ),
]
HOSTILE = "<img src=x onerror=\"alert('x')\"><script>alert(1)</script>"
LONG = "orders_of_the_whole_company_" * 5
PAGES = (
    "",
    "topics",
    "topics/clicks",
    "topics/clicks/partitions",
    "topics/default.daily.a",
    f"tables/default.{LONG}",
    "topics/clicks/configs",
    "topics/clicks/plots",
    "topics/clicks/produce",
    "topics/clicks/change",
    "tables",
    "tables/default.fruit",
    "tables/default.fruit/columns",
    "tables/default.fruit/options",
    "tables/default.fruit/buckets",
    "tables/default.fruit/live",
    "tables/default.fruit/write",
    "sql",
    "groups",
    f"groups/{quote(HOSTILE, safe='')}",
    "lake",
    "lake/default.fruit",
    "refused",
    "tables/default.fruit/plots",
    "topics/framed",
    "schemas",
    "schemas/a%2Fclicks",
    "connectors",
    "connectors/files%2Fout",
    "users",
    "users/rights",
    "users/acls",
    "users/quotas",
    "brokers",
    "brokers/0",
    f"topics/{quote(HOSTILE, safe='')}",
    "nowhere",
)


class Console(NamedTuple):
    """The address of the console, and that of its server."""

    url: str
    server: str


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    folder = tmp_path_factory.mktemp("browser")
    config = folder / "server.properties"
    config.write_text(
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        "super.users=User:ANONYMOUS\nkv.snapshot.interval=1s\n"
    )
    served = Served("--listen", "127.0.0.1:0", "--data", str(folder / "data"), "--config", str(config))
    with connect(served.address) as connection:
        connection.execute(
            "CREATE TABLE fruit (id INT, name STRING, big BIGINT, PRIMARY KEY (id) NOT ENFORCED)"
            " COMMENT '<b>bold</b>' WITH ('bucket.num' = '2');"
            f"CREATE TABLE {LONG} (id INT); CREATE TABLE daily (day STRING, n INT) PARTITIONED BY (day)"
        )
        connection.table("default.daily").append([{"day": "a", "n": 1}])
        fruit = connection.table("default.fruit")
        for version in range(3):
            fruit.upsert([{"id": n, "name": f"{HOSTILE}{version}", "big": 2**60 + n} for n in range(30)])
        connection.kafka.create_topic("clicks", partitions=2)
        value = json.dumps({"page": HOSTILE, "user": 1}).encode()
        connection.kafka.produce(
            "clicks",
            [OutgoingRecord(value, HOSTILE.encode(), [(HOSTILE, HOSTILE.encode())]) for _ in range(60)],
        )
        connection.security.create_user("ann", "secret")
        connection.security.grant(["SELECT", "INSERT"], TablePath.parse("default.fruit"), "User:ann")
        connection.security.grant(["ALL"], "default", f"User:{HOSTILE}")
        connection.kafka.commit_offsets(HOSTILE, "clicks", {0: 1, 1: 1})
        with pytest.raises(Exception, match="INVALID_RECORD"):
            connection.kafka.produce("default.fruit", [OutgoingRecord(json.dumps({"id": HOSTILE}).encode())])
        connection.kafka.alter_client_quotas({"user": HOSTILE}, {"producer_byte_rate": 1e6})
        connection.kafka.create_topic("framed", partitions=1)
        framed = [b"\0\0\0\0\1\x0e", b"\0\0\0\0\1", b"\0\0\0\0\x09x", b'{"id": 9007199254740993}']
        connection.kafka.produce("framed", [OutgoingRecord(each, each) for each in framed])
    programs = ExitStack()
    registry, connectors = (
        programs.enter_context(served_program(each())) for each in (SchemaRegistry, KafkaConnect)
    )
    schema = {"type": "record", "name": "Click", "doc": HOSTILE, "fields": [{"name": "id", "type": "long"}]}
    registry.schemas[1] = {"schema": json.dumps(schema), "subject": "a/clicks"}
    words = ["console", "--server", served.address, "--listen", "127.0.0.1:0", "--allow-writes"]
    words += ["--history", str(folder / "console.ring"), "--schema-registry", registry.url]
    words += ["--connect", connectors.url]
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.tablelayer.cli.main", *words],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    found = re.search(r"(http://\S+)/ ", process.stdout.readline())
    assert found
    yield Console(found.group(1), served.address)
    process.terminate()
    codes = process.wait(60), served.stop()[0]
    process.stdout.close()
    programs.close()
    assert codes == (0, 0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


class Watched:
    """A page, and whatever it complained about."""

    def __init__(self, browser: Any, console: Console, width: int, theme: str) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=theme)
        self.page = self.context.new_page()
        self.console = console.url
        self.troubles: list[str] = []
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.troubles.append("a dialog"), dialog.dismiss()))
        self.page.on("requestfailed", self._failed)
        self.page.on("console", self._said)

    def _failed(self, request: Any) -> None:
        if not request.url.startswith(self.console):
            self.troubles.append(f"asked {request.url}")

    def _said(self, message: Any) -> None:
        # Chromium's own editing tries to keep the style of text that is typed over. The policy does not let it.
        expected = ("status of 40", "Applying inline style violates")
        if message.type == "error" and not any(each in message.text for each in expected):
            self.troubles.append(message.text)

    def go(self, to: str) -> None:
        self.page.goto("about:blank")
        self.page.goto(f"{self.console}/#/{to}")
        self.page.locator("#main[data-shown]").wait_for()
        self.page.wait_for_timeout(300)

    def violations(self) -> list[Any]:
        """The violations that axe finds on the page."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_every_page_shows_text_and_fits(
    browser: Any, console: Console, width: int, theme: str, tmp_path: Path
) -> None:
    shots = Path(os.environ.get("HEADRACE_SCREENSHOTS", tmp_path))
    watched = Watched(browser, console, width, theme)
    page = watched.page
    for to in PAGES:
        watched.go(to)
        assert page.locator("main h1, main .error").first.inner_text()
        assert page.locator("main img:not(.cm-widgetBuffer), main script, main b[onerror]").count() == 0, to
        page.wait_for_load_state("networkidle")
        too_wide = page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert too_wide <= 0, f"{to or 'overview'} is {too_wide} px wider than {width}"
        assert watched.violations() == [], to
        if to == "topics/clicks":
            page.get_by_role("region", name="Records").wait_for()
            assert page.get_by_role("region", name="Records").locator("tbody tr").count() == 50
            height = page.evaluate("document.documentElement.scrollHeight")
            assert height < 100 * 50, f"50 records make {height} px"
        if to == "topics":
            kinds = page.get_by_role("link", name=re.compile("^table( partition)?$"))  # other tests make more
            hrefs = {f"{each.inner_text()} {each.get_attribute('href')}" for each in kinds.all()}
            assert {"table #/tables/default.fruit", "table partition #/tables/default.daily"} <= hrefs
        if to == "lake/default.fruit":
            page.get_by_text("default.fruit is not tiered to a lake. Set").wait_for()
        name = re.sub(r"\W+", "-", to)[:40] or "overview"
        page.screenshot(path=shots / f"{name}-{width}-{theme}.png", full_page=True)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(17, 24, 28)") == (theme == "dark")
    assert watched.troubles == []
    watched.context.close()


def test_plots_have_ticks_hover_and_ranges(browser: Any, console: Console) -> None:
    watched = Watched(browser, console, 1280, "light")
    page = watched.page
    watched.go("")
    plot = page.get_by_role("img", name="Bytes of logs")
    legend = plot.locator(".u-legend")
    plot.locator(".u-over").wait_for(timeout=60_000)
    newest = legend.inner_text()
    assert re.search(r"\d\d:\d\d:\d\d[^\d]*[\d.]+ [KM]?i?B", newest), newest
    plot.locator(".u-over").hover(position={"x": 5, "y": 20})
    earlier = "([legend, newest]) => legend.innerText < newest"  # both begin with their time
    page.wait_for_function(earlier, arg=[legend.element_handle(), newest])
    box = plot.locator(".u-over").bounding_box()
    assert box is not None
    page.get_by_role("button", name="15 min").click()
    assert page.get_by_role("button", name="15 min").get_attribute("aria-pressed") == "true"
    page.wait_for_timeout(1000)
    plot.locator(".u-over").hover(position={"x": box["width"] - 3, "y": 20})
    assert re.search(r"Bytes of logs\s*[\d.]+ [KM]?i?B", plot.locator(".u-legend").inner_text())
    assert watched.violations() == watched.troubles == []
    watched.context.close()


def test_by_keyboard_alone(browser: Any, console: Console) -> None:
    watched = Watched(browser, console, 1280, "light")
    page = watched.page
    watched.go("")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    watched.go("sql")
    page.get_by_label("Query").focus()
    page.keyboard.type("SELECT id % 3 AS part, count(*) AS n FROM fruit GROUP BY 1 ORDER BY 1")
    page.keyboard.press("Control+Enter")
    page.get_by_role("region", name="Result").wait_for()
    assert page.get_by_role("region", name="Result").locator("tbody tr").count() == 3
    assert page.get_by_role("img", name="n").count() == 1
    watched.go("tables/default.fruit")
    page.get_by_label("Primary key").focus()
    page.keyboard.type("3")
    page.keyboard.press("Enter")
    page.get_by_text("Changes, newest first").wait_for()
    assert page.get_by_role("region", name="Row").get_by_text(f"{HOSTILE}2", exact=True).count() == 1
    assert page.get_by_role("region", name="Changes").locator("tbody tr").count() == 5
    page.get_by_label("Change between light and dark").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert watched.troubles == []
    watched.context.close()


def test_records_are_browsed_produced_and_followed(browser: Any, console: Console) -> None:
    watched, other = Watched(browser, console, 1280, "light"), Watched(browser, console, 1280, "light")
    page = watched.page
    watched.go("topics/clicks")
    page.get_by_role("region", name="Records").wait_for()
    page.get_by_label("JSON fields as columns").check()
    rows = page.get_by_role("region", name="Records as rows")
    assert rows.get_by_role("columnheader", name="page").count() == 1
    page.get_by_label("JSON fields as columns").uncheck()
    page.get_by_role("button", name="Live tail").click()
    page.get_by_text("Waiting for what comes").wait_for()
    page.wait_for_timeout(1500)
    other.go("topics/clicks/produce")
    other.page.get_by_label("Value").fill(HOSTILE)
    other.page.get_by_role("button", name="Produce").click()
    other.page.get_by_text("Written to partition").wait_for()
    page.get_by_role("region", name="Live").get_by_text("<img src=x").first.wait_for()
    assert page.get_by_role("region", name="Live").locator("tbody tr").count() == 1
    page.get_by_role("button", name="Stop").click()
    watched.go(f"groups/{quote(HOSTILE, safe='')}")
    page.get_by_role("button", name="Preview offsets").click()
    page.get_by_text("The offsets would be set to these.").wait_for()
    assert watched.troubles == other.troubles == []
    watched.context.close()
    other.context.close()


def test_the_newest_query_alone_draws_and_a_query_is_cancelled(browser: Any, console: Console) -> None:
    watched = Watched(browser, console, 1280, "light")
    page = watched.page
    watched.go("sql")
    query, run = page.get_by_label("Query"), page.get_by_role("button", name="Run")
    cancel = page.get_by_role("button", name="Cancel")
    assert cancel.is_disabled()
    long = "SELECT sum(a.range * b.range % 7) AS slow FROM range(100000000) a, range({}) b"
    query.fill(long.format(3))  # some seconds, and an answer
    run.click()
    query.fill("SELECT 42 AS fast")
    run.click()
    result = page.get_by_role("region", name="Result")
    result.get_by_role("columnheader", name="fast").wait_for()
    page.wait_for_timeout(6000)
    assert result.get_by_role("columnheader").all_inner_texts() == ["fast"]
    query.fill(long.format(100000))
    run.click()
    page.get_by_text("Running").wait_for()
    cancel.click()
    page.get_by_text("Cancelled.").wait_for()
    assert cancel.is_disabled()
    assert watched.troubles == []
    watched.context.close()


def test_a_topic_is_created_changed_and_deleted(browser: Any, console: Console) -> None:
    watched = Watched(browser, console, 1280, "light")
    page = watched.page
    watched.go("topics")
    page.get_by_label("Name", exact=True).fill("made")
    page.get_by_label("Partitions", exact=True).fill("2")
    page.get_by_label("Configurations").fill("retention.ms=60000")
    page.get_by_role("button", name="Create").click()
    page.get_by_text("This topic has no record here").wait_for()
    page.get_by_role("link", name="Configuration").click()
    page.get_by_role("cell", name="60000").wait_for()
    page.get_by_label("Reset to the default").fill("retention.ms")
    page.get_by_role("button", name="Change", exact=True).click()
    page.get_by_text("Changed: retention.ms").wait_for()
    page.get_by_role("link", name="Partitions and deletion").click()
    page.get_by_role("button", name="Add").click()
    page.get_by_text("made has 3 partitions").wait_for()
    page.get_by_label("Its name, to confirm").fill("mad")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("alert").wait_for()
    page.get_by_label("Its name, to confirm").fill("made")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("region", name="Topics").wait_for()
    assert page.get_by_role("link", name="made").count() == 0
    assert watched.troubles == []
    watched.context.close()


def test_10_000_records_a_second_do_not_freeze_the_page(browser: Any, console: Console) -> None:
    watched, ended, sent = Watched(browser, console, 1280, "light"), threading.Event(), [0]
    page = watched.page

    def produce() -> None:
        value = json.dumps({"page": "/shop", "long": "x" * 5000}).encode()
        records = [OutgoingRecord(b"%d" % n, b"k", [("trace", b"7")]) for n in range(2499)]
        with connect(console.server) as connection:
            due = time.monotonic()
            while not ended.is_set():
                connection.kafka.produce("busy", [*records, OutgoingRecord(value, b"k", [("trace", b"7")])])
                sent[0] += 2500
                due += 0.25
                time.sleep(max(0.0, due - time.monotonic()))

    with connect(console.server) as connection:
        connection.kafka.create_topic("busy", partitions=1)
    watched.go("topics/busy")
    page.get_by_text("This topic has no record here").wait_for()
    page.get_by_role("button", name="Live tail").click()
    live, told = page.get_by_role("region", name="Live"), page.get_by_role("status").first
    live.wait_for()
    page.evaluate(
        "() => { window.draws = 0; new MutationObserver(() => { window.draws += 1; })"
        ".observe(document.querySelector('.live tbody'), { childList: true }); }"
    )
    producing = threading.Thread(target=produce)
    producing.start()
    try:
        live.locator("summary", has_text="/shop").first.wait_for()
        page.get_by_role("button", name="Pause").click()  # a row that moves is hard to hit
        live.locator("summary", has_text="/shop").first.click()
        page.get_by_role("button", name="Resume").click()
        live.get_by_role("columnheader", name="header").wait_for()
        began, before = time.monotonic(), page.evaluate("window.draws")
        page.wait_for_timeout(6000)
        draws = (page.evaluate("window.draws") - before) / (time.monotonic() - began)
        assert 0.5 < draws <= 4.5, draws
        assert live.locator("tbody > tr").count() <= 130  # the open one, and its headers
        assert len(live.locator("details[open] pre").first.inner_text()) > 5000, "the whole record"
        assert live.locator("pre").count() == 2, "the value and the key of the open record alone"
        assert watched.violations() == []
        page.get_by_role("button", name="Pause").click(timeout=5000)
        page.wait_for_timeout(600)
        drawn = page.evaluate("window.draws")
        page.wait_for_timeout(1500)
        assert page.evaluate("window.draws") == drawn
        page.get_by_role("button", name="Resume").click(timeout=5000)
    finally:
        ended.set()
        producing.join()
    page.get_by_text(f"{sent[0]:,} records came").wait_for()
    page.wait_for_timeout(600)
    skipped = int(re.findall(r"([\d,]+) skipped", told.inner_text())[0].replace(",", ""))
    assert sent[0] * 0.9 < skipped < sent[0]
    assert live.locator("details[open]").count() == 1
    page.get_by_role("button", name="Stop").click()
    assert watched.troubles == []
    watched.context.close()


def test_10_000_changes_of_rows_a_second_do_not_freeze_the_page(browser: Any, console: Console) -> None:
    watched, ended, sent = Watched(browser, console, 1280, "light"), threading.Event(), [0]
    page = watched.page

    def upsert() -> None:
        rows = [[{"id": n, "word": f"{turn} " * 20} for n in range(2500)] for turn in range(2)]
        with connect(console.server) as connection:
            table, due = connection.table("default.moving"), time.monotonic()
            while not ended.is_set():
                table.upsert(rows[sent[0] // 2500 % 2])
                sent[0] += 2500
                due += 0.25
                time.sleep(max(0.0, due - time.monotonic()))

    with connect(console.server) as connection:
        connection.execute("CREATE TABLE moving (id INT, word STRING, PRIMARY KEY (id) NOT ENFORCED)")
    watched.go("tables/default.moving/live")
    page.get_by_label("one row for each key").check()
    page.get_by_role("button", name="Live tail").click()
    live = page.get_by_role("region", name="Live")
    live.wait_for()
    page.evaluate(
        "() => { window.draws = 0; new MutationObserver(() => { window.draws += 1; })"
        ".observe(document.querySelector('.live tbody'), { childList: true }); }"
    )
    upserting = threading.Thread(target=upsert)
    upserting.start()
    try:
        live.locator("tr.updated").first.wait_for()
        began, before = time.monotonic(), page.evaluate("window.draws")
        page.wait_for_timeout(6000)
        draws = (page.evaluate("window.draws") - before) / (time.monotonic() - began)
        assert 0.5 < draws <= 4.5, draws
        assert live.locator("tbody > tr").count() <= 120
        page.get_by_role("button", name="Pause").click(timeout=5000)
        page.get_by_role("button", name="Resume").click(timeout=5000)
    finally:
        ended.set()
        upserting.join()
    # Each change of a row is two: before and after. The first rows are inserted.
    page.get_by_text(f"{2 * sent[0] - 2500:,} changes came").wait_for()
    page.get_by_role("button", name="Stop").click()
    assert watched.violations() == watched.troubles == []
    watched.context.close()


def test_changes_of_a_table_move_and_show_their_kind(browser: Any, console: Console) -> None:
    watched = Watched(browser, console, 390, "dark")
    page = watched.page
    watched.go("tables/default.fruit/live")
    page.get_by_label("Condition (SQL)").fill("id >= 500")
    page.get_by_label("one row for each key").check()
    page.get_by_role("button", name="Live tail").click()
    live = page.get_by_role("region", name="Live")
    page.wait_for_timeout(1000)
    with connect(console.server) as connection:
        fruit = connection.table("default.fruit")
        fruit.upsert([{"id": n, "name": HOSTILE, "big": n} for n in (500, 501, 502, 1)])
        live.get_by_text("+I insert").nth(2).wait_for()
        fruit.upsert([{"id": 500, "name": "new", "big": 0}])
        live.locator("tr.updated").wait_for()
        fruit.delete([{"id": 501}])
        live.locator("tr.deleted").wait_for()
    rows = live.locator("tbody tr")
    assert [re.sub(r"\s+", " ", each)[:9] for each in rows.all_inner_texts()] == [
        "-D delete",
        "+U update",
        "+I insert",
    ]
    colours = rows.evaluate_all("rows => rows.map((row) => getComputedStyle(row).backgroundColor)")
    assert len(set(colours)) == 3
    assert watched.violations() == watched.troubles == []
    watched.context.close()


def test_sql_is_completed_paged_drawn_explained_and_remembered(browser: Any, console: Console) -> None:
    watched = Watched(browser, console, 1280, "light")
    page = watched.page
    watched.go("sql")
    query, run = page.get_by_label("Query"), page.get_by_role("button", name="Run")
    page.get_by_text("fruit", exact=True).click()
    page.get_by_role("button", name="big", exact=True).click()
    assert query.inner_text() == "big"
    query.fill("SELECT n FROM fruit")
    for _ in range(len(" FROM fruit")):
        page.keyboard.press("ArrowLeft")
    page.keyboard.type("a")
    page.get_by_role("option", name="name").wait_for()
    page.wait_for_timeout(200)  # a list that has just opened does not take Enter
    page.keyboard.press("Enter")
    assert query.inner_text() == "SELECT name FROM fruit"
    query.fill("SELECT range AS a, range % 7 AS b, 'c' || range AS c FROM range(20000)")
    run.click()
    result = page.get_by_role("region", name="Result")
    page.get_by_text("1 to 50 of 10,000").wait_for()
    assert result.locator("tbody tr").count() == 50
    page.get_by_role("button", name="Next").click()
    assert result.locator("tbody tr").first.inner_text().split() == ["50", "1", "c50"]
    result.get_by_role("button", name="b").click()
    result.get_by_role("button", name="b").click()
    assert result.locator("tbody tr").first.inner_text().split()[1] == "6"
    assert page.get_by_role("img", name="b by a").count() == 1
    page.get_by_label("a", exact=True).check()
    page.get_by_role("combobox", name="By").select_option("c")
    page.get_by_role("img", name="a, b by c").locator("canvas").wait_for()
    assert watched.violations() == []
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download CSV").click()
    assert Path(saved.value.path()).read_text().splitlines()[:2] == ["a,b,c", "0,0,c0"]
    query.fill("SELECT f.name FROM fruit f JOIN clicks c ON f.id = c.partition WHERE f.id > 3")
    page.get_by_role("button", name="Plan").click()
    tree = page.locator(".tree")
    tree.wait_for()
    assert tree.get_by_text("hash join").locator("xpath=..").locator("li").count() >= 2
    assert {"read default.fruit", "read default.clicks"} <= set(tree.locator("b").all_inner_texts())
    watched.go("")
    watched.go("sql")
    page.get_by_text("History (1)").click()
    page.get_by_role("button", name="SELECT range AS a").click()
    assert query.inner_text().startswith("SELECT range AS a")
    assert watched.violations() == watched.troubles == []
    watched.context.close()


def test_values_are_decoded_acls_and_quotas_set_and_a_task_restarted(browser: Any, console: Console) -> None:
    watched = Watched(browser, console, 390, "light")
    page = watched.page
    watched.go("topics/framed")
    records = page.get_by_role("region", name="Records")
    records.locator("summary", has_text='{"id": 7}').click()
    records.get_by_text("Value: Avro, schema 1").wait_for()
    records.get_by_text("Bytes of the value").click()
    records.get_by_text("000000 00 00 00 00 01 0e").wait_for()
    records.locator("summary", has_text="not decoded").click()
    records.get_by_text("Schema 9 not found").last.wait_for()
    assert watched.violations() == []
    page.get_by_label("Keys and values as").select_option("bytes")
    records.locator("summary", has_text="00 00 00 00 01 0e").wait_for()
    watched.go("users/acls")
    new, find = page.get_by_role("form", name="Create an ACL"), page.get_by_role("form", name="Find ACLs")
    new.get_by_label("Principal").fill("User:bob")
    new.get_by_label("Operation").select_option("DESCRIBE")
    new.get_by_label("Resource name").fill("cli")
    new.get_by_label("Pattern type").select_option("PREFIXED")
    new.get_by_role("button", name="Create").click()
    page.get_by_text("The ACL was created.").wait_for()
    find.get_by_label("Principal").fill("User:bob")
    find.get_by_role("button", name="Show").click()
    acls = page.get_by_role("region", name="ACLs")
    page.wait_for_function("document.querySelectorAll('[aria-label=ACLs] tbody tr').length === 1")
    heads = ["resource type", "resource name", "pattern type", "principal", "host", "operation", "permission"]
    cells = acls.locator("tbody td").all()[: len(heads)]
    assert [each.get_attribute("data-title") for each in cells] == heads
    assert [each.inner_text() for each in cells] == [
        "TOPIC",
        "cli",
        "PREFIXED",
        "User:bob",
        "*",
        "DESCRIBE",
        "ALLOW",
    ]
    acls.get_by_role("button", name="Delete").click()
    page.keyboard.press("Escape")
    acls.get_by_role("button", name="Delete").press("Enter")
    acls.get_by_role("button", name="Really delete?").press("Enter")
    page.get_by_text("No ACL matches").wait_for()
    watched.go("users/quotas")
    page.get_by_role("combobox", name=re.compile("^user")).select_option("name")
    page.get_by_label("Name of the user").fill("bob")
    page.get_by_label("Limit").select_option("consumer_byte_rate")
    page.get_by_label("Value").fill("2048")
    page.get_by_role("button", name="Set").click()
    quotas = page.get_by_role("region", name="Quotas")
    row = quotas.locator("tbody tr", has_text="bob")
    row.get_by_text("2,048").wait_for()
    assert watched.violations() == []
    row.get_by_role("button", name="Remove").click()
    row.get_by_role("button", name="Really remove?").click()
    page.get_by_text("consumer_byte_rate was removed.").wait_for()
    watched.go("connectors/files%2Fout")
    tasks = page.get_by_role("region", name="Tasks")
    tasks.locator("tbody tr").nth(1).get_by_text("failed").wait_for()
    tasks.get_by_role("button", name="Restart").nth(1).click()
    page.get_by_text("Task 1 is restarted.").wait_for()
    tasks.locator("tbody tr").nth(1).get_by_text("running").wait_for()
    assert watched.troubles == []
    watched.context.close()
