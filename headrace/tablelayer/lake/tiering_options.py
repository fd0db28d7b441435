"""Options of the tiering job: its Spark application, and the time of the day for maintenance."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Environment variable of an application that `spark-submit` started."""
_DAY_MINUTES = 24 * 60


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Settings of the job's Spark application, by the words of `spark-submit`.

    `cores` and `memory` are those of a local session; on a cluster, all cores of the application and the driver's heap.
    """

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    packages: str | None = None
    jars: str | None = None
    cores: int | None = None
    memory: str | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `tablelayer.spark.sessions.session`."""
        extra = dict(self.conf)
        given = {"spark.master": self.master, "spark.jars.packages": self.packages, "spark.jars": self.jars}
        extra |= {name: value for name, value in given.items() if value is not None}
        if "spark.master" not in extra and SUBMITTED not in os.environ:
            sized = {"cores": self.cores, "memory": self.memory}
            return {"extra": extra, **{name: value for name, value in sized.items() if value is not None}}
        if self.cores is not None:
            extra["spark.cores.max"] = str(self.cores)
        if self.memory is not None:
            extra["spark.driver.memory"] = self.memory
        return {"extra": extra}


@dataclass(frozen=True, slots=True)
class DailyWindow:
    """A time of each day in UTC, from `start` to before `end`, in minutes; it may go over midnight."""

    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> DailyWindow:
        """Read "22:00-04:30". Raises ValueError."""
        found = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)", text)
        if found is None:
            raise ValueError(f"'{text}' is not a time of the day: write 22:00-04:00, in UTC")
        hour, minute, last_hour, last_minute = map(int, found.groups())
        window = cls(hour * 60 + minute, last_hour * 60 + last_minute)
        if window.start == window.end:
            raise ValueError(f"'{text}' is empty: leave the option out for the whole day")
        return window

    def is_open(self, now: datetime.datetime) -> bool:
        at = now.astimezone(datetime.UTC)
        passed = (at.hour * 60 + at.minute - self.start) % _DAY_MINUTES
        return passed < (self.end - self.start) % _DAY_MINUTES
