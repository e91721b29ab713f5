"""Source numbers out of the scan's rows, beside a plain reading; and rows that lie."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zenlake.log.kernels.sources import rehash, source_table, sources_kernel
from zenlake.wire.kernels.row import ROW

pytestmark = pytest.mark.kernel

SEED = np.uint64(0x1234_5678_9ABC_DEF0)
DATA = np.frombuffer(bytes([0, *range(1, 20), *range(1, 20), 0, 0, 1, 0]), np.uint8)

places = st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(0, len(DATA) + 2)
lengths = st.integers(-3, 20) | st.just(1 << 30)
entities = st.integers(0, 2) | st.integers(0, (1 << 32) - 1)


def plain(rows: "np.ndarray") -> list[tuple[int, bytes, int, int]]:
    found = []
    for number, row in enumerate(rows):
        start, length = int(row["source"]), int(row["source_len"])
        if start > 0 and 0 < length <= 16 and start + length <= len(DATA):
            name = DATA[start : start + length].tobytes().ljust(16, b"\0")
            found.append((number, name, int(row["source_eid"]), int(row["source_sn"])))
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(places, lengths, entities, entities), max_size=40))
def test_it_finds_what_a_plain_reading_finds(
    told: list[tuple[int, int, int, int]],
) -> None:
    rows = np.zeros(len(told), ROW)
    for row, (start, length, entity, number) in zip(rows, told, strict=True):
        row["source"], row["source_len"] = start, length
        row["source_eid"], row["source_sn"] = entity, number
    table = source_table(1)
    where, codes, numbers = np.zeros((3, len(rows)), np.int64)
    at = count = 0
    while True:
        rest = where[count:], codes[count:], numbers[count:]
        at, more = sources_kernel(rows, at, DATA, SEED, table, *rest)
        count += more
        if at == len(rows):
            break
        old, used = table, int(table.used[0])
        assert used == len(old.low)  # only then is it full
        table = source_table(2 * used)
        table.low[:used], table.high[:used], table.entity[:used] = old.low, old.high, old.entity
        table.used[:] = used
        rehash(table, SEED)
    got = [
        (
            int(where[row]),
            table.low[codes[row]].tobytes() + table.high[codes[row]].tobytes(),
            int(table.entity[codes[row]]),
            int(numbers[row]),
        )
        for row in range(count)
    ]
    assert got == plain(rows)
    assert int(table.used[0]) == len({row[1:3] for row in got})
