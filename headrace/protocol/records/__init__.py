"""Record batches, magic 2 and Arrow: header view, vectorised decoding and encoding, compression."""
