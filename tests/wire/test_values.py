"""The values that people handle: they hash, compare, print well and pickle, and agree with Rust."""

import copy
import pickle
from typing import Any

import pytest
import zenoh
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies as s
from zenlake.errors import DecodeError, EncodeError, InvalidLocator, Reason
from zenlake.quantities import nanos_from_ntp64, ntp64_from_nanos
from zenlake.wire.encoding import CUSTOM_ID, PREDEFINED, WireEncoding
from zenlake.wire.entity import WireEntityId, WireSourceInfo
from zenlake.wire.enums import Mapping, WireCongestionControl, WirePriority
from zenlake.wire.locator import EndPoint, Locator
from zenlake.wire.qos import QoS
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

ZID = WireZenohId.parse("a1a2a3a4")
STAMP = WireTimestamp.parse("2024-07-01T12:00:00.123456789Z/a1")

VALUES: list[tuple[Any, str]] = [
    (ZID, "a1a2a3a4"),
    (WireEncoding.parse("text/plain"), "text/plain"),
    (WireEncoding.parse("text/json;utf8"), "text/json;utf8"),
    (WireEncoding.parse("my/own;v1"), "my/own;v1"),
    (STAMP, str(STAMP)),
    (QoS(WirePriority.REAL_TIME, WireCongestionControl.BLOCK_FIRST), "QoS(REAL_TIME, BLOCK_FIRST)"),
    (WireExpr(3, "/x", Mapping.SENDER), "sender#3/x"),
    (WireExpr(0, "a/b"), "a/b"),
    (Locator("tcp/127.0.0.1:7447?rel=1"), "tcp/127.0.0.1:7447?rel=1"),
    (EndPoint("tcp/[::1]:7447#iface=lo"), "tcp/[::1]:7447#iface=lo"),
    (WireEntityId(ZID, 7), "a1a2a3a4/7"),
    (WireSourceInfo(WireEntityId(ZID, 7), 9), "a1a2a3a4/7#9"),
]


@pytest.mark.parametrize(("value", "text"), VALUES, ids=lambda v: v if isinstance(v, str) else "")
def test_values_hash_compare_print_and_pickle(value: Any, text: str) -> None:
    assert str(value) == text
    for twin in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert twin == value
        assert hash(twin) == hash(value)
        assert type(twin) is type(value)
    assert {value: 1}[value] == 1
    name = type(value).__name__
    assert repr(value).startswith((name, name.removeprefix("Wire")))


def test_errors_pickle() -> None:
    decode = DecodeError(Reason.CUT_SHORT, "payload", 7).within("PUT").within("PUSH")
    encode = EncodeError("is wrong", "qos").within("PUSH")
    for error in (decode, encode):
        twin = pickle.loads(pickle.dumps(error))
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)


# --- ZenohId


@given(s.zids)
def test_zenoh_id_text(zid: WireZenohId) -> None:
    assert WireZenohId.parse(str(zid)) == zid
    assert int(str(zid), 16) == int(zid)
    assert str(zid) == zid.raw[::-1].hex().lstrip("0")


def test_zenoh_ids_are_ordered_by_their_little_endian_bytes() -> None:
    small, large = WireZenohId.parse("ff01"), WireZenohId.parse("2")
    assert int(small) > int(large)
    assert small < large


@given(s.zids, s.zids)
def test_zenoh_id_order_is_that_of_the_padded_bytes(a: WireZenohId, b: WireZenohId) -> None:
    assert (a < b) == (a.raw.ljust(16, b"\0") < b.raw.ljust(16, b"\0"))


@pytest.mark.parametrize("text", ["", "0", "0a", "A1", "g", "1" * 33, " 1", "-1", "1_1"])
def test_bad_zenoh_ids(text: str) -> None:
    with pytest.raises(ValueError, match="hexadecimal"):
        WireZenohId.parse(text)


@pytest.mark.parametrize("raw", [b"", b"\0", b"\0" * 16, b"\1" * 17])
def test_bad_zenoh_id_bytes(raw: bytes) -> None:
    with pytest.raises(ValueError, match="1 to 16 bytes"):
        WireZenohId(raw)


# --- Encoding


@pytest.mark.parametrize("number", range(len(PREDEFINED)))
def test_predefined_encodings(number: int) -> None:
    text = PREDEFINED[number]
    assert WireEncoding.parse(text) == WireEncoding(number)
    assert str(WireEncoding(number)) == text
    assert str(WireEncoding(number).with_schema("s")) == f"{text};s"


def reference_encodings() -> dict[str, str]:
    """The constants of eclipse-zenoh, NAME -> text."""
    return {
        name: str(getattr(zenoh.Encoding, name))
        for name in dir(zenoh.Encoding)
        if name.isupper() and isinstance(getattr(zenoh.Encoding, name), zenoh.Encoding)
    }


def test_the_predefined_table_is_the_reference_implementation_s() -> None:
    assert set(reference_encodings().values()) == set(PREDEFINED)


@pytest.mark.parametrize(
    "text", ["", "zenoh/bytes", "text/plain;", "text/plain;a;b", "foo", "foo;bar", ";", ";x", "é;ü"]
)
def test_encoding_text_reads_as_in_the_reference_implementation(text: str) -> None:
    assert str(WireEncoding.parse(text)) == str(zenoh.Encoding(text))


@pytest.mark.parametrize("text", ["text/plain;old", "foo", "foo;bar"])
@pytest.mark.parametrize("schema", ["new", ""])
def test_with_schema_as_in_the_reference_implementation(text: str, schema: str) -> None:
    ours = WireEncoding.parse(text).with_schema(schema)
    theirs = zenoh.Encoding(text).with_schema(schema)
    assert str(ours).removesuffix(";") == str(theirs).removesuffix(";")


def test_custom_and_unknown_encodings() -> None:
    assert WireEncoding.parse("foo/bar;v1") == WireEncoding(CUSTOM_ID, b"foo/bar;v1")
    assert str(WireEncoding(999)) == "unknown(999)"
    assert str(WireEncoding(999, b"s")) == "unknown(999);s"
    for number, schema in ((-1, None), (65536, None), (0, b"x" * 256)):
        with pytest.raises(ValueError, match=r"encoding id|at most 255"):
            WireEncoding(number, schema)


# --- Timestamp


@given(st.integers(0, 2**32 * 10**9 - 1))
def test_nanoseconds_survive_ntp64(nanos: int) -> None:
    assert nanos_from_ntp64(ntp64_from_nanos(nanos)) == nanos


@given(s.timestamps)
def test_timestamp_text_is_exact(stamp: WireTimestamp) -> None:
    assert WireTimestamp.parse(str(stamp)) == stamp


@given(s.timestamps)
def test_rfc3339_keeps_nanoseconds(stamp: WireTimestamp) -> None:
    again = WireTimestamp.parse(stamp.rfc3339())
    assert again.nanos == stamp.nanos
    assert again.rfc3339() == stamp.rfc3339()
    assert again.id == stamp.id


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2024-07-01T12:00:00Z", 1_719_835_200_000_000_000),
        ("2024-07-01T14:00:00.5+02:00", 1_719_835_200_500_000_000),
        ("2024-07-01T12:00:00.000000001Z", 1_719_835_200_000_000_001),
    ],
)
def test_rfc3339_text(text: str, nanos: int) -> None:
    assert WireTimestamp.parse(f"{text}/a1").nanos == nanos


@pytest.mark.parametrize(
    "text",
    ["", "1", "x/a1", "1/0", "2024-07-01/a1", "2024-13-01T00:00:00Z/a1", "-1/a1", f"{2**64}/a1"],
)
def test_bad_timestamps(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        WireTimestamp.parse(text)


def test_times_that_ntp64_cannot_hold() -> None:
    for nanos in (-1, 2**32 * 10**9):
        with pytest.raises(ValueError, match="NTP64"):
            ntp64_from_nanos(nanos)


def test_timestamps_are_ordered_by_time_then_id() -> None:
    early, late = (
        WireTimestamp(1, WireZenohId.parse("ff")),
        WireTimestamp(2, WireZenohId.parse("1")),
    )
    same = WireTimestamp(2, WireZenohId.parse("2"))
    assert sorted([same, late, early]) == [early, late, same]


# --- QoS


def test_all_qos_bytes() -> None:
    for byte in range(256):
        qos = QoS.from_byte(byte)
        assert qos.priority == byte & 7
        assert qos.express == bool(byte & 0x10)
        blocks, first = byte & 0x08, byte & 0x20
        want = WireCongestionControl.DROP
        if first:
            want = WireCongestionControl.BLOCK_FIRST
        if blocks:
            want = WireCongestionControl.BLOCK
        assert qos.congestion_control is want
    assert QoS() is QoS.from_byte(5)
    assert QoS(WirePriority.CONTROL, WireCongestionControl.BLOCK) == 0x08


# --- Locator, EndPoint

GOOD = [
    ("tcp/127.0.0.1:7447", "tcp", "127.0.0.1:7447", {}, {}),
    ("tcp/[::1]:7447?b=2;a=1", "tcp", "[::1]:7447", {"a": "1", "b": "2"}, {}),
    ("udp/h:1?prio=1-3#iface=lo;x=1|2", "udp", "h:1", {"prio": "1-3"}, {"iface": "lo", "x": "1|2"}),
    ("unixsock-stream//tmp/a.sock", "unixsock-stream", "/tmp/a.sock", {}, {}),
    ("tcp/h:1#b=2;a=1", "tcp", "h:1", {}, {"a": "1", "b": "2"}),
    ("tcp/h:1?;b=2;;a=1;#c=3;", "tcp", "h:1", {"a": "1", "b": "2"}, {"c": "3"}),
]


@pytest.mark.parametrize(("text", "protocol", "address", "metadata", "config"), GOOD)
def test_an_endpoint_is_read_into_its_parts_and_written_back(
    text: str, protocol: str, address: str, metadata: dict[str, str], config: dict[str, str]
) -> None:
    endpoint = EndPoint(text)
    assert (endpoint.protocol, endpoint.address) == (protocol, address)
    assert (endpoint.metadata, endpoint.config) == (metadata, config)
    assert list(endpoint.metadata) == sorted(metadata)
    assert EndPoint(str(endpoint)) == endpoint
    assert endpoint.locator == Locator(str(endpoint).partition("#")[0])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tcp",
        "tcp/",
        "/h:1",
        "tcp/h?",
        "tcp/h#",
        "tcp/h?=1",
        "tcp/h?a=1;=2",
        "tcp/h?;",
        "t/" + "x" * 300,
    ],
)
def test_bad_endpoints(text: str) -> None:
    with pytest.raises(InvalidLocator):
        EndPoint(text)


def test_a_locator_has_no_configuration() -> None:
    with pytest.raises(InvalidLocator, match="no '#'"):
        Locator("tcp/h:1#iface=lo")


@given(st.text(alphabet="tcp/?#=;|a1.:", max_size=30))
def test_endpoint_text_is_stable(text: str) -> None:
    try:
        endpoint = EndPoint(text)
    except InvalidLocator:
        return
    assert EndPoint(str(endpoint)) == endpoint
