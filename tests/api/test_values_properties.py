"""Random values: the answers are those of eclipse-zenoh, and what goes in comes out."""

import datetime
from typing import Any

import pytest
import zenoh
from hypothesis import example, given
from hypothesis import strategies as st

from zenlake.api.values.encoding import Encoding
from zenlake.api.values.selector import Parameters, Selector
from zenlake.api.values.timestamps import NTP64, Timestamp, TimestampId
from zenlake.api.values.zbytes import ZBytes, payload_bytes
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr

pytestmark = pytest.mark.slow

parameter_texts = st.text(alphabet="ab=;|?_é", max_size=16)
words = st.text(alphabet="ab=;|_é", max_size=4)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), words, words),
        st.tuples(st.just("remove"), words),
        st.tuples(st.just("extend"), parameter_texts),
    ),
    max_size=5,
)
seconds = st.integers(0, 2**32 - 1)
nanos = st.integers(0, 999_999_999)
clock_ids = st.binary(min_size=1, max_size=16).filter(lambda raw: any(raw))


@given(parameter_texts, changes, words)
def test_parameters(text: str, steps: list[tuple[str, ...]], key: str) -> None:
    ours = Parameters(text)
    theirs: Any = zenoh.Parameters(text)
    for method, *arguments in [("get", key), *steps]:
        assert getattr(ours, method)(*arguments) == getattr(theirs, method)(*arguments)
        assert str(ours) == str(theirs)
        assert list(ours) == list(theirs)
        assert ours.is_ordered() == theirs.is_ordered()
        assert ours.is_empty() == theirs.is_empty()
        assert bool(ours) == bool(theirs)
        assert ours.get(key) == theirs.get(key)
        assert ours.values(key) == theirs.values(key)
        assert (key in ours) == (key in theirs)


@given(st.text(alphabet="ab/*?=;#é", max_size=12))
def test_selector(text: str) -> None:
    try:
        theirs = zenoh.Selector(text)
    except zenoh.ZError:
        theirs = None
    try:
        ours = Selector(text)
    except ZError:
        assert theirs is None
        return
    assert theirs is not None
    assert str(ours) == str(theirs)
    assert ours.key_expr == str(theirs.key_expr)
    assert str(ours.parameters) == str(theirs.parameters)
    assert Selector(str(ours)) == ours


@given(seconds, nanos)
def test_ntp64(second: int, nano: int) -> None:
    ours, theirs = NTP64(second, nano), zenoh.NTP64(second, nano)
    for ask in ("as_secs", "as_nanos", "subsec_nanos", "as_secs_f64", "to_datetime"):
        assert getattr(ours, ask)() == getattr(theirs, ask)()
    text = ours.to_string_rfc3339_lossy()
    assert text == theirs.to_string_rfc3339_lossy()
    assert (str(ours), repr(ours)) == (str(theirs), repr(theirs))
    assert ours.as_nanos() == second * 1_000_000_000 + nano
    assert NTP64.parse_rfc3339(text) == ours
    assert str(zenoh.NTP64.parse_rfc3339(text)) == str(ours)


@given(st.integers(0, 2**64 - 1))
def test_every_ntp64_off_the_wire_has_a_text(time: int) -> None:
    ntp64 = NTP64.of(time)
    again = NTP64.parse_rfc3339(ntp64.to_string_rfc3339_lossy())
    assert 0 <= abs(again.wire - time) <= 5  # a nanosecond is 4.3 steps
    assert ntp64.subsec_nanos() < 1_000_000_000


@given(seconds, nanos, clock_ids, seconds, nanos, clock_ids)
@example(1, 999_999_997, b"a", 0, 999_999_998, b"a")
def test_timestamp(s1: int, n1: int, id1: bytes, s2: int, n2: int, id2: bytes) -> None:
    ours = Timestamp(NTP64(s1, n1), id1), Timestamp(NTP64(s2, n2), id2)
    theirs: Any = (
        zenoh.Timestamp(zenoh.NTP64(s1, n1), id1),
        zenoh.Timestamp(zenoh.NTP64(s2, n2), id2),
    )
    assert (ours[0] < ours[1]) == (theirs[0] < theirs[1])
    assert (ours[0] == ours[1]) == (theirs[0] == theirs[1])
    for mine, other in zip(ours, theirs, strict=True):
        assert str(mine) == str(other)
        assert mine.get_time() == other.get_time()
        assert bytes(mine.get_id()) == bytes(other.get_id())
        assert mine.to_string_rfc3339_lossy() == other.to_string_rfc3339_lossy()
        assert Timestamp.parse_rfc3339(mine.to_string_rfc3339_lossy()) == mine
    if ours[0].wire.time >= ours[1].wire.time:
        assert ours[0].get_diff_duration(ours[1]) == theirs[0].get_diff_duration(theirs[1])
    assert ours[0].get_diff_duration(ours[1]) == -ours[1].get_diff_duration(ours[0])


@given(
    st.datetimes(
        datetime.datetime(1970, 1, 1),  # noqa: DTZ001
        datetime.datetime(2106, 1, 1),  # noqa: DTZ001
        timezones=st.just(datetime.UTC),
    ),
    clock_ids,
)
def test_a_datetime_comes_back(when: datetime.datetime, owner: bytes) -> None:
    ours = Timestamp(when, owner)
    assert ours.get_time() == when
    assert str(ours) == str(zenoh.Timestamp(when, owner))


@given(st.binary(max_size=18))
def test_timestamp_id(raw: bytes) -> None:
    try:
        theirs = zenoh.TimestampId(raw)
    except zenoh.ZError:
        theirs = None
    try:
        ours = TimestampId(raw)
    except ZError:
        assert theirs is None
        return
    assert theirs is not None
    assert (str(ours), bytes(ours), hash(ours)) == (str(theirs), bytes(theirs), hash(theirs))


@given(st.text(alphabet="abé;/", max_size=20), st.text(alphabet="ab;é", min_size=1, max_size=8))
def test_encoding(text: str, schema: str) -> None:
    ours, theirs = Encoding(text), zenoh.Encoding(text)
    assert str(ours) == str(theirs)
    assert hash(ours) == hash(str(theirs))
    assert ours == text
    if not text.startswith(";"):  # a custom encoding without a type
        assert str(ours.with_schema(schema)) == str(theirs.with_schema(schema))


@given(st.sampled_from(list(map(str, [Encoding.ZENOH_BYTES, Encoding.VIDEO_VP9]))), st.text())
def test_encoding_with_a_predefined_type(kind: str, schema: str) -> None:
    text = f"{kind};{schema}"
    if len(schema.encode()) <= 255:
        assert str(Encoding(text)) == str(zenoh.Encoding(text))


@given(st.text(alphabet="ab/*$@#?é", max_size=12), st.text(alphabet="ab/*$@", max_size=6))
def test_key_expr(text: str, other: str) -> None:
    try:
        theirs = zenoh.KeyExpr(text)
    except zenoh.ZError:
        theirs = None
    try:
        ours = KeyExpr(text)
    except ZError as error:
        assert theirs is None
        assert str(error).startswith("Invalid Key Expr `")
        return
    assert theirs is not None
    assert (str(ours), repr(ours)) == (str(theirs), repr(theirs))
    assert hash(ours) == hash(theirs)
    assert type(KeyExpr.trusted(text)) is KeyExpr
    assert KeyExpr.trusted(text) == ours
    try:
        joined = str(ours / other)
    except ZError:
        return
    assert KeyExpr(joined) == joined
    if "$*$*" not in other:  # the reference panics
        assert joined == str(theirs.join(other))


@given(st.binary(max_size=40))
def test_zbytes(raw: bytes) -> None:
    theirs = zenoh.ZBytes(raw)
    framed = memoryview(b"head" + raw + b"tail")[4 : 4 + len(raw)]
    for ours in (
        ZBytes(raw),
        ZBytes.of(raw),
        ZBytes(framed),
        ZBytes.of(framed),
        ZBytes(bytearray(raw)),
    ):
        assert ours.to_bytes() == bytes(ours) == bytes(ours.view) == raw
        assert payload_bytes(ours) == raw
        assert (len(ours), bool(ours), hash(ours)) == (len(theirs), bool(theirs), hash(theirs))
        assert ours == ZBytes(raw) == raw
    try:
        text = str(theirs)
    except ValueError:
        text = None
    try:
        assert ZBytes(framed).to_string() == text
    except ValueError:
        assert text is None
