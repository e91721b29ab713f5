"""Every value type is one: it compares, hashes, sorts, copies and pickles."""

import copy
import operator
import pickle
from typing import Any

import pytest

from zenlake.api.values.encoding import Encoding
from zenlake.api.values.enums import (
    CongestionControl,
    ConsolidationMode,
    InterceptionPoint,
    Locality,
    Priority,
    QueryTarget,
    Reliability,
    ReplyKeyExpr,
    SampleKind,
    WhatAmI,
    WhatAmIMatcher,
)
from zenlake.api.values.ids import EntityGlobalId, SourceInfo, ZenohId
from zenlake.api.values.instrumentation import (
    TimestampContext,
    TimestampInstrumentation,
    TimestampStack,
    TimestampStackRecord,
)
from zenlake.api.values.selector import Parameters, Selector
from zenlake.api.values.timestamps import NTP64, Timestamp, TimestampId
from zenlake.api.values.zbytes import ZBytes
from zenlake.keyexpr import KeyExpr, SetIntersectionLevel
from zenlake.wire import entity, tsstack, zenohid

ENUMS = [
    *[CongestionControl, ConsolidationMode, InterceptionPoint, Locality, Priority, QueryTarget],
    *[Reliability, ReplyKeyExpr, SampleKind, SetIntersectionLevel, WhatAmI],
]
A, B = zenohid.WireZenohId(b"a"), zenohid.WireZenohId(b"b")
ENTITIES = [entity.WireEntityId(A, 2), entity.WireEntityId(B, 1)]

SORTED: list[list[Any]] = [
    *[list(kind) for kind in ENUMS],
    [KeyExpr("a"), KeyExpr("a/*"), KeyExpr("b")],
    [ZBytes(b""), ZBytes(b"a"), ZBytes(memoryview(b"xab")[1:]), ZBytes("b")],
    [Encoding("text/plain"), Encoding("text/plain;a"), Encoding("zenoh/bytes")],
    [Parameters(""), Parameters("a=1"), Parameters({"b": "1"})],
    [Selector("a"), Selector("a?b"), Selector("b")],
    [NTP64(1, 0), NTP64(1, 5), NTP64(2, 0)],
    [TimestampId(b"\x01\x02"), TimestampId(b"\x02\x01")],
    [Timestamp(NTP64(1, 0), b"b"), Timestamp(NTP64(2, 0), b"a"), Timestamp(NTP64(2, 0), b"b")],
    [ZenohId.of(A), ZenohId.of(B)],
    [EntityGlobalId.of(who) for who in ENTITIES],
    [SourceInfo(EntityGlobalId.of(ENTITIES[0]), 1), SourceInfo(EntityGlobalId.of(ENTITIES[0]), 2)],
    [WhatAmIMatcher(""), WhatAmIMatcher("router"), WhatAmIMatcher("router|peer")],
    [TimestampInstrumentation.of(1), TimestampInstrumentation.of(2)],
    [TimestampStackRecord.of((1, b"a")), TimestampStackRecord.of((1, b"b"))],
    [TimestampContext.of((A, WhatAmI.PEER)), TimestampContext.of((B, WhatAmI.PEER))],
]
STACKS = [
    TimestampStack.of(tsstack.WireTimestampStack(1)),
    TimestampStack.of(tsstack.WireTimestampStack(2)),
]
VALUES = [value for values in [*SORTED, STACKS] for value in values]


def label(values: list[Any]) -> str:
    return type(values[0]).__name__


@pytest.mark.parametrize("values", SORTED, ids=label)
def test_values_compare_in_their_order(values: list[Any]) -> None:
    backwards = values[::-1]
    assert sorted(backwards) == values
    for i, low in enumerate(values):
        for high in values[i + 1 :]:
            assert low < high
            assert low <= high
            assert high > low
            assert high >= low
            assert not high <= low
        assert low <= low
        assert not low > low


@pytest.mark.parametrize("values", [*SORTED, STACKS], ids=label)
def test_equality_and_hash(values: list[Any]) -> None:
    assert len(set(values)) == len(values)
    for value in values:
        assert [other for other in values if other == value] == [value]
        assert hash(value) == hash(copy.deepcopy(value))
        assert value != object()


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}-{value}")
def test_copy_and_pickle(value: Any) -> None:
    copies = [copy.copy(value), copy.deepcopy(value)]
    copies += [pickle.loads(pickle.dumps(value, n)) for n in range(pickle.HIGHEST_PROTOCOL + 1)]
    for other in copies:
        assert type(other) is type(value)
        assert other == value
        assert hash(other) == hash(value)
        assert str(other) == str(value)


@pytest.mark.parametrize("kind", ENUMS)
def test_members_stay_themselves(kind: Any) -> None:
    for member in kind:
        assert pickle.loads(pickle.dumps(member)) is member
        assert copy.deepcopy(member) is member
        assert kind(int(member)) is member


def test_values_of_two_classes_do_not_mix() -> None:
    pairs: list[tuple[Any, Any]] = [
        (ZenohId.of(A), TimestampId(b"a")),
        (Priority.REAL_TIME, SampleKind.DELETE),
        (NTP64(0, 0), 0),
        (Selector("a"), "a"),
    ]
    for value, other in pairs:
        assert value != other
        for compare in (operator.lt, operator.le, operator.gt, operator.ge):
            with pytest.raises(TypeError):
                compare(value, other)


def test_predefined_encodings_are_one_object_each() -> None:
    assert Encoding("text/plain") is Encoding.TEXT_PLAIN
    assert pickle.loads(pickle.dumps(Encoding.TEXT_PLAIN)) is Encoding.TEXT_PLAIN
    assert Encoding.of(Encoding("text/plain").wire) is Encoding.TEXT_PLAIN


def test_a_changed_copy_leaves_the_original() -> None:
    first = Parameters("a=1")
    second = copy.copy(first)
    second.insert("b", "2")
    assert (str(first), str(second)) == ("a=1", "a=1;b=2")


def test_parameters_of_a_dict_keep_its_order() -> None:
    names = [f"n{i}" for i in range(50)]
    assert [name for name, _ in Parameters(dict.fromkeys(names, "1"))] == names
