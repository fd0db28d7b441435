"""snappy, lz4 and zstd of cramjam for kafka-python, which takes them from optional packages and frames them itself."""

from types import SimpleNamespace

import cramjam
import kafka.codec
import kafka.record.default_records


def _lz4_compress(payload):
    return bytes(cramjam.lz4.compress(payload))


def _lz4_decompress(payload):
    return bytes(cramjam.lz4.decompress(payload))


def install():
    codec, records = kafka.codec, kafka.record.default_records
    codec.snappy = SimpleNamespace(
        compress=lambda data: bytes(cramjam.snappy.compress_raw(data)),
        decompress=lambda data: bytes(cramjam.snappy.decompress_raw(data)),
    )
    codec.lz4 = SimpleNamespace(compress=_lz4_compress, decompress=_lz4_decompress)
    codec.lz4_encode = records.lz4_encode = _lz4_compress
    codec.lz4_decode = records.lz4_decode = _lz4_decompress
    codec.zstd = SimpleNamespace()
    codec.zstd_encode = records.zstd_encode = lambda data: bytes(cramjam.zstd.compress(data))
    codec.zstd_decode = records.zstd_decode = lambda data: bytes(cramjam.zstd.decompress(data))
