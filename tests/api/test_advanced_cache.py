"""The samples that a cache gives out, by the parameters of the query."""

import pytest

from zenlake.api.values.selector import Parameters
from zenlake.errors import ZError
from zenlake.ext.advanced_cache import Body, Cache, select
from zenlake.keyexpr import KeyExpr
from zenlake.wire.entity import WireEntityId, WireSourceInfo
from zenlake.wire.put import Put
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.zenohid import WireZenohId

U32 = 0xFFFF_FFFF
ZID = WireZenohId(b"\x01")
NANOS = 1_000_000_000
NOON = 1_719_835_200 * NANOS


def body(sn: int, seconds_before_noon: int = 0) -> Body:
    time = NOON // NANOS - seconds_before_noon
    return Put(
        str(sn).encode(),
        timestamp=WireTimestamp(time << 32, ZID),
        source_info=WireSourceInfo(WireEntityId(ZID, 1), sn & U32),
    )


def asked(parameters: str, kept: list[Body]) -> list[int]:
    found = select(kept, Parameters(parameters), NOON)
    return [int(entry.payload) for entry in found if isinstance(entry, Put)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parameters", "numbers"),
    [
        ("", [3, 4, 5, 6]),
        ("_anyke", [3, 4, 5, 6]),
        ("_sn=4..5", [4, 5]),
        ("_sn=5..", [5, 6]),
        ("_sn=..4", [3, 4]),
        ("_sn=..", [3, 4, 5, 6]),
        ("_sn=5", [5]),
        ("_sn=9..", []),
        ("_sn=nonsense", [3, 4, 5, 6]),
        ("_max=2", [5, 6]),
        ("_max=99", [3, 4, 5, 6]),
        ("_max=0", []),
        ("_max=-1", [3, 4, 5, 6]),
        ("_sn=3..5;_max=2", [4, 5]),
        ("_time=[now(-90s)..]", [5, 6]),
        ("_time=[..now(-90s)]", [3, 4]),
        ("_time=nonsense", [3, 4, 5, 6]),
        ("_max=1;_time=[..now(-90s)];_anyke", [4]),
    ],
)
def test_parameters_select_by_number_count_and_time(parameters: str, numbers: list[int]) -> None:
    kept = [body(sn, seconds_before_noon=60 * (6 - sn)) for sn in (3, 4, 5, 6)]
    assert asked(parameters, kept) == numbers


def test_a_range_of_numbers_goes_on_past_the_wrap() -> None:
    kept = [body(sn) for sn in (U32 - 1, U32, U32 + 1, U32 + 2)]
    assert asked(f"_sn={U32}..", kept) == [U32, U32 + 1, U32 + 2]
    assert asked(f"_sn={U32}..0", kept) == [U32, U32 + 1]
    assert asked("_sn=0..", kept) == [U32 + 1, U32 + 2]


def test_without_numbers_a_range_of_them_finds_nothing() -> None:
    assert select([Put(b"x")], Parameters("_sn=0.."), NOON) == []
    assert select([Put(b"x")], Parameters("_time=[now(-1s)..]"), NOON) == [Put(b"x")]


def test_an_empty_cache_is_refused() -> None:
    with pytest.raises(ZError, match="max_samples must not be zero"):
        Cache(KeyExpr("a"), 0)
