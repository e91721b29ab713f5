"""How fast key expressions are matched, alone and in a tree, on one thread."""

from collections import deque
from collections.abc import Callable

from bench.figures import Figure, Figures, median_seconds
from zenlake.keyexpr import KeyExpr, KeyExprTree, intersects

RUNS = 9

PART = "a" * 22


def _dollar_stars(number: int) -> str:
    """Return a chunk of 8 `a` in `$*`, with more `$*` between them where `number` has a bit."""
    return "$*a" + "".join("$*a" if number >> i & 1 else "a" for i in range(7)) + "$*"


WORST = [
    # 40 `**` in 1 KiB that match only at the very end, or not at all.
    ("/".join(["**", PART] * 40) + "/b/**", "/".join([PART] * 44)),
    ("**/" + "a/**/" * 39 + "*/" * 200 + "b/**", "a/" * 500 + "a"),
    ("/".join(["**", PART] * 40) + "/b", "/".join(["**", PART] * 40) + "/c"),
    # `$*` chains in one chunk of 1 KiB.
    ("$*a" * 340 + "b", "a" * 1_020 + "c"),
    ("$*a" * 340 + "$*b$*", "a" * 1_020),
    # 53 different chunks with `$*` between two `**`, each matching every chunk of the key.
    ("**/" + "/".join(map(_dollar_stars, range(53))) + "/b/**",
     "/".join(f"{i:02}aaaaaaaa" for i in range(93))),
]  # fmt: skip


def figures() -> Figures:
    plain = ("robot/7/sensor/imu/accel", "robot/7/sensor/imu/gyro")
    rate = _per_second(lambda: intersects(*plain), 100_000)
    yield Figure("intersects, two plain keys", rate, "ops/s")
    wild = ("robot/7/sensor/imu/accel", "robot/7/**")
    rate = _per_second(lambda: intersects(*wild), 20_000)
    yield Figure("intersects, plain key and a/**", rate, "ops/s")
    rate = _per_second(lambda: KeyExpr("robot/7/sensor/imu/accel"), 20_000)
    yield Figure("KeyExpr of a plain key", rate, "ops/s")
    worst = max(map(_worst_ms, WORST))
    yield Figure("intersects, worst of six 1 KiB pairs (40 **, $* chains)", worst, "ms")
    yield from _tree_figures()


def _tree_figures() -> Figures:
    rates = []
    for count in (1_000, 100_000):
        rates.append(_lookups_per_second(_tree(count), count))
        yield Figure(f"tree lookup of one key among {count:,}", rates[-1], "lookups/s")
    yield Figure("tree lookup rate, 100,000 over 1,000", rates[1] / rates[0], "ratio")
    yield Figure("tree insert", 20_000 * _per_second(lambda: _tree(20_000), 1), "inserts/s")


def _tree(count: int) -> KeyExprTree[int]:
    """Return a tree of plain keys, keys with `*`, and keys with `**`, a third each."""
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
    def repeat() -> None:
        for _ in range(times):
            work()

    return times / median_seconds({"work": repeat}, RUNS)["work"]
