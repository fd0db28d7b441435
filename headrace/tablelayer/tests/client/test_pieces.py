"""Rows are split by size, and the error about a row that no request can hold has its number."""

import random

import pyarrow as pa
import pytest

from headrace.tablelayer.client import DataError
from headrace.tablelayer.client.write import pieces


@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_in_one_piece_and_no_piece_is_larger_than_a_request(seed, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES_MAX", 1_000)
    dice = random.Random(seed)
    sizes = [dice.choice([0, 1, 5, 20, 400, 900]) for _ in range(dice.randrange(1, 200))]
    rows = pa.record_batch({"n": pa.array(range(len(sizes))), "s": pa.array(["x" * size for size in sizes])})
    rows = rows.slice(dice.randrange(len(sizes)))
    pieces.check_rows_fit(pa.table(rows), "t")
    cut = list(pieces.pieces(rows, dice.choice([100, 900])))
    assert pa.concat_batches(cut).equals(rows) if cut else not rows.num_rows
    assert max((each.nbytes for each in cut), default=0) <= 1_000
    assert len(cut) <= rows.num_rows


def test_a_row_that_is_too_large_is_named_with_its_largest_column(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES_MAX", 1_000)
    texts = ["x" * 900] * 20
    texts[7], texts[13] = "y" * 1_100, "z" * 1_500
    rows = pa.table({"n": range(20), "s": texts, "t": ["x"] * 20})
    with pytest.raises(
        DataError, match=r"t: row 7 has .* bytes, but at most 1000 are allowed; column 's'"
    ) as caught:
        pieces.check_rows_fit(rows, "t")
    assert (caught.value.row, caught.value.column) == (7, "s")


@pytest.mark.parametrize("seed", range(20))
def test_slabs_have_all_rows_in_order_and_are_filled(seed):
    dice = random.Random(seed)
    lengths = [dice.choice([0, 1, 3, 30, 79, 95, 100, 250]) for _ in range(dice.randrange(30))]
    chunks = [
        pa.array(range(1_000 * at, 1_000 * at + length), pa.int64()) for at, length in enumerate(lengths)
    ]
    rows = pa.table({"n": pa.chunked_array(chunks, pa.int64())})
    cut = list(pieces.slabs(rows, 100))
    assert pa.Table.from_batches(cut, schema=rows.schema).equals(rows)
    assert all(75 <= slab.num_rows <= 100 for slab in cut[:-1])
    assert all(0 < slab.num_rows <= 100 for slab in cut)


def test_chunks_that_nearly_fill_a_slab_are_not_copied():
    chunks = [pa.array(range(90)) for _ in range(3)]
    for chunk, slab in zip(chunks, pieces.slabs(pa.table({"n": pa.chunked_array(chunks)}), 100), strict=True):
        assert slab.column(0).buffers()[1].address == chunk.buffers()[1].address
