"""How fast key expressions are matched, alone and in a tree.

Each figure is the median of several runs on one thread; nothing is asserted here.
"""

from collections import deque
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter

from zenlake.keyexpr import KeyExpr, KeyExprTree, intersects

RUNS = 9

PART = "a" * 22


def _dollar_stars(number: int) -> str:
    """A chunk that begins and ends with `$*`, with 8 `a` between, parted as `number` says."""
    return "$*a" + "".join("$*a" if number >> i & 1 else "a" for i in range(7)) + "$*"


WORST = [
    # 40 `**` in 1 KiB that find their place at the very end, or not at all
    ("/".join(["**", PART] * 40) + "/b/**", "/".join([PART] * 44)),
    ("**/" + "a/**/" * 39 + "*/" * 200 + "b/**", "a/" * 500 + "a"),
    ("/".join(["**", PART] * 40) + "/b", "/".join(["**", PART] * 40) + "/c"),
    # `$*` chains in one chunk of 1 KiB
    ("$*a" * 340 + "b", "a" * 1_020 + "c"),
    ("$*a" * 340 + "$*b$*", "a" * 1_020),
    # 53 different chunks with `$*` in one part, that all match every different chunk of the key
    ("**/" + "/".join(map(_dollar_stars, range(53))) + "/b/**",
     "/".join(f"{i:02}aaaaaaaa" for i in range(93))),
]  # fmt: skip


def figures() -> Iterator[tuple[str, float, str]]:
    """(name, value, unit) of each measurement."""
    plain = ("robot/7/sensor/imu/accel", "robot/7/sensor/imu/gyro")
    yield "intersects, two plain keys", _per_second(lambda: intersects(*plain), 100_000), "ops/s"
    wild = ("robot/7/sensor/imu/accel", "robot/7/**")
    yield "intersects, plain key and a/**", _per_second(lambda: intersects(*wild), 20_000), "ops/s"
    key = "robot/7/sensor/imu/accel"
    yield "KeyExpr of a plain key", _per_second(lambda: KeyExpr(key), 20_000), "ops/s"
    yield (
        "intersects, worst of six 1 KiB pairs (40 **, $* chains)",
        max(map(_worst_ms, WORST)),
        "ms",
    )
    yield from _tree_figures()


def _tree_figures() -> Iterator[tuple[str, float, str]]:
    rates = []
    for count in (1_000, 100_000):
        rate = _lookups_per_second(_tree(count), count)
        rates.append(rate)
        yield f"tree lookup of one key among {count:,}", rate, "lookups/s"
    yield "tree lookup rate, 100,000 over 1,000", rates[1] / rates[0], "ratio"
    yield "tree insert", 20_000 * _per_second(lambda: _tree(20_000), 1), "inserts/s"


def _tree(count: int) -> KeyExprTree[int]:
    """A third each of plain keys, `*` in the middle, and `**` at the end."""
    spellings = ("fleet/{}/imu/accel", "fleet/{}/*/accel", "fleet/{}/**")
    tree = KeyExprTree[int]()
    for number in range(count):
        tree.insert(spellings[number % 3].format(number // 3), number)
    return tree


def _lookups_per_second(tree: KeyExprTree[int], count: int) -> float:
    keys = [f"fleet/{number * 7919 % (count // 3)}/imu/accel" for number in range(300)]

    def look_all_up() -> None:
        for key in keys:
            deque(tree.intersecting(key), maxlen=0)

    return len(keys) * _per_second(look_all_up, 1)


def _worst_ms(pair: tuple[str, str]) -> float:
    return 1_000 / min(
        _per_second(lambda: intersects(*pair), 1), _per_second(lambda: intersects(*pair[::-1]), 1)
    )


def _per_second(work: Callable[[], object], times: int) -> float:
    return times / median(_seconds(work, times) for _ in range(RUNS))


def _seconds(work: Callable[[], object], times: int) -> float:
    start = perf_counter()
    for _ in range(times):
        work()
    return perf_counter() - start
