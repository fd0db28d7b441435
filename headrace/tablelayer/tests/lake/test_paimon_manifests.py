"""Damaged manifests of a Paimon table; `test_paimon.py` reads Paimon's own."""

from __future__ import annotations

import io

import fastavro
import pytest

from headrace.tablelayer.lake.paimon_reader import read_manifest

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "text", "type": "string"}]}
RECORDS = [{"text": f"{number} of a few" * 9} for number in range(5)]


def written(codec: str) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, SCHEMA, RECORDS, codec=codec, sync_interval=1)
    return out.getvalue()


@pytest.mark.parametrize("codec", ["null", "deflate", "zstandard"])
def test_a_manifest_that_is_cut_off_never_has_other_records(codec: str) -> None:
    whole = written(codec)
    assert read_manifest(whole) == RECORDS
    refused = 0
    for size in range(len(whole)):
        try:
            found = read_manifest(whole[:size])
        except ValueError:
            refused += 1
        else:
            assert found == RECORDS[: len(found)]
            assert len(found) < len(RECORDS)
    assert refused > len(whole) // 2


@pytest.mark.parametrize("data", [b"", b"PAR1" + bytes(50), b"Obj\x01"])
def test_files_that_are_not_manifests_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not an Avro file"):
        read_manifest(data)
