"""Conditions drawn at random: what is pushed to the server keeps the rows that DuckDB finds in a copy."""

from __future__ import annotations

import random

import pytest

from tablelayer.tests.sql.differential.conditions import HEADRACE, random_condition, smallest
from tablelayer.tests.sql.differential.reference import Reference, RefusedError
from tablelayer.tests.sql.differential.tables import quoted, random_table
from tablelayer.tests.sql.differential.translation import translation_fault
import sys, collections, time

if __name__ == "__main__":
    reference = Reference()
    t0 = time.time()
    n = pushed = refused = 0
    seen = collections.Counter()
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        rng = random.Random(seed)
        table = random_table(rng, "default.t", row_count=40)
        reference.load(table)
        for _ in range(40):
            c = random_condition(rng, table)

            def check(c):
                return translation_fault(table, c, reference.truth(c))

            try:
                n += 1
                was, fault = check(c)
                pushed += was
            except RefusedError as e:
                refused += 1
                if seen[str(e)[:60]] == 0:
                    print("REF", c.text("reference", quoted), str(e)[:150])
                seen[str(e)[:60]] += 1
                continue
            except Exception as e:
                fault = f"{type(e).__name__}: {e}"
            if fault:

                def fails(c):
                    try:
                        return check(c)[1] is not None
                    except RefusedError:
                        return False
                    except Exception:
                        return True

                m = smallest(c, fails)
                try:
                    f = check(m)[1]
                except Exception as e:
                    f = f"{type(e).__name__}: {e}"
                key = f[:40]
                seen[key] += 1
                if seen[key] < 4:
                    print("FAULT", seed, m.text(HEADRACE, quoted), "\n    ", f[:300])
    print(n, pushed, refused, time.time() - t0, seen)
