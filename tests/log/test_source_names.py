"""Sources out of the scan's rows, beside a plain reading."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from zenlake.log.read.source_numbers import source_names
from zenlake.wire.kernels.row import ROW

DATA = bytes([0, *range(1, 20), *range(1, 20), 0, 0, 1, 0])

places = st.integers(1, len(DATA) - 1)
lengths = st.integers(1, 16)
entities = st.integers(0, 2) | st.integers(0, (1 << 32) - 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(places, lengths, entities), max_size=40))
def test_they_are_what_a_plain_reading_finds(told: list[tuple[int, int, int]]) -> None:
    told = [(start, min(length, len(DATA) - start), entity) for start, length, entity in told]
    rows = np.zeros(len(told), ROW)
    rows["source"], rows["source_len"], rows["source_eid"] = np.array(told).reshape(-1, 3).T
    assert source_names(rows, memoryview(DATA)).tolist() == [
        DATA[start : start + length].ljust(16, b"\0") + entity.to_bytes(4, "little")
        for start, length, entity in told
    ]
