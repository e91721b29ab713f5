"""The kernel that reads blocks agrees with log/format.py about where every field stands."""

import struct

import numpy as np

from zenlake.log import format as log_format
from zenlake.log.kernels import blocks


def position(entry: np.dtype[np.void], field: str) -> int:
    assert entry.fields is not None
    return int(entry.fields[field][1])


def test_sizes_of_the_kernels_are_those_of_the_format() -> None:
    assert blocks.HEADER_BYTES == log_format.HEADER_BYTES == 92
    assert blocks.LINK_BYTES == log_format.LINK_ENTRY.itemsize == 24
    assert blocks.KEY_BYTES == log_format.KEY_ENTRY.itemsize == 12
    assert blocks.LOSS_BYTES == log_format.LOSS_ENTRY.itemsize == 64
    assert blocks.BATCH_BYTES == log_format.BATCH_ENTRY.itemsize == 24
    assert blocks.MAX_LINKS == log_format.MAX_LINKS


def test_fields_of_a_batch() -> None:
    entry = log_format.BATCH_ENTRY
    assert position(entry, "link") == blocks.BATCH_LINK
    assert position(entry, "count") == blocks.BATCH_COUNT
    assert position(entry, "length") == position(entry, "count") + 4  # read as one 64-bit word


def test_fields_of_a_key() -> None:
    """The kernel takes them from two overlapping 64-bit words, at 0 and at 4."""
    fields = ("link", "mapping", "scope", "suffix_len", "text_len")
    assert [position(log_format.KEY_ENTRY, field) for field in fields] == [0, 1, 2, 4, 8]


def test_the_crc_is_the_last_field_of_the_header() -> None:
    assert struct.calcsize("<I") == blocks.CRC_BYTES
    names = log_format.BlockHeader._fields
    assert names[-1] == "crc"
