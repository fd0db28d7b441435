"""COMPATIBILITY.md agrees with the server's advertised versions."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from foreign.report import PATH, PRIVATE_KEYS_FROM, advertised_in
from foreign.tap import advertised_by


def test_the_document_names_the_ranges_that_are_advertised(server):
    advertised = {key: ends for key, ends in advertised_by(server.port).items() if key < PRIVATE_KEYS_FROM}
    assert advertised_in(PATH.read_text()) == advertised, "run `make compat`"
