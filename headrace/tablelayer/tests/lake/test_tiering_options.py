"""Options of the tiering job: the arguments of its Spark session, and the time of maintenance."""

from __future__ import annotations

import datetime

import pytest

from headrace.tablelayer.lake.tiering_options import SUBMITTED, DailyWindow, SparkOptions


def test_without_a_master_cores_and_memory_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SUBMITTED, raising=False)
    assert SparkOptions().arguments() == {"extra": {}}
    options = SparkOptions(cores=4, memory="2g", conf={"spark.a": "b"}, packages="g:a:1", jars="/x.jar")
    extra = {"spark.a": "b", "spark.jars.packages": "g:a:1", "spark.jars": "/x.jar"}
    assert options.arguments() == {"extra": extra, "cores": 4, "memory": "2g"}


def test_with_a_master_cores_and_memory_are_the_applications(monkeypatch: pytest.MonkeyPatch) -> None:
    options = SparkOptions(cores=4, memory="2g")
    sizes = {"spark.cores.max": "4", "spark.driver.memory": "2g"}
    master = {"spark.master": "spark://host:7077"}
    assert SparkOptions("spark://host:7077", cores=4, memory="2g").arguments() == {
        "extra": {**master, **sizes}
    }
    assert SparkOptions(conf=master, cores=4).arguments() == {"extra": {**master, "spark.cores.max": "4"}}
    monkeypatch.setenv(SUBMITTED, "1234")
    assert options.arguments() == {"extra": sizes}


@pytest.mark.parametrize(
    ("text", "open_at", "closed_at"),
    [
        ("01:00-05:00", ("01:00", "04:59"), ("00:59", "05:00", "13:00")),
        ("22:30-04:00", ("22:30", "23:59", "00:00", "03:59"), ("04:00", "22:29")),
    ],
)
def test_a_window_may_go_over_midnight(
    text: str, open_at: tuple[str, ...], closed_at: tuple[str, ...]
) -> None:
    window = DailyWindow.parse(text)
    for at, is_open in [*((each, True) for each in open_at), *((each, False) for each in closed_at)]:
        moment = datetime.datetime.fromisoformat(f"2024-03-01T{at}:00+00:00")
        assert window.is_open(moment) is is_open, at
    east = datetime.timezone(datetime.timedelta(hours=5))
    assert DailyWindow.parse("01:00-02:00").is_open(datetime.datetime(2024, 3, 1, 6, 30, tzinfo=east))


@pytest.mark.parametrize("text", ["1:00-2:00", "24:00-01:00", "01:00", "01:60-02:00", "01:00-01:00", ""])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write 22:00-04:00|is empty"):
        DailyWindow.parse(text)
