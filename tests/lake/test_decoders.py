"""Decoders: every payload becomes the value that it says, or fails alone and says why."""

import base64
import json
import math
import struct
import tomllib
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cbor2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zenoh.ext as reference
from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal
from rosbags.typesys import Stores, get_typestore

from zenlake.errors import ZError
from zenlake.ext import serialization as ext
from zenlake.lake import decoders
from zenlake.lake.decoders import BUILT_IN, Decoders, Rule, messages, numeric, serialized, values
from zenlake.lake.decoders.messages import INPUT, OUTPUT, MessageDecoder
from zenlake.lake.pipeline.messages import decode_batches, decode_samples
from zenlake.lake.project import Project
from zenlake.lake.tables import schema
from zenlake.lake.tables.dictionary import dictionary_encode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = 1_700_000_000_000_000


def rows(*samples: tuple[Any, ...]) -> pa.RecordBatch:
    """(payload, encoding, schema, key) of each; what is left out is null, a key "a"."""
    full = [(*sample, *(None, None, None, "a")[len(sample) :]) for sample in samples]
    count = len(full)
    columns = {
        "key": pa.array([sample[3] for sample in full], pa.string()),
        "payload": pa.array([sample[0] for sample in full], pa.binary()),
        "encoding": pa.array([sample[1] for sample in full], pa.string()),
        "schema": pa.array([sample[2] for sample in full], pa.string()),
        "received_at": pa.array(range(START, START + count), schema.TIME),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
    }
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in INPUT]
    return pa.RecordBatch.from_arrays(arrays, schema=INPUT)


NO_DECODER = ("no decoder",)  # A tuple, which no JSON text decodes to.


def outcomes(of: Decoders, *samples: tuple[Any, ...]) -> list[Any]:
    """Of each sample its value, the text of a reason behind "!", or NO_DECODER."""
    made = decode(rows(*samples), of)
    found: list[Any] = [NO_DECODER] * len(samples)
    for row in made.select(["offset", "value", "reason"]).to_pylist():
        value, reason = row["value"], row["reason"]
        assert (value is None) != (reason is None)
        found[row["offset"]] = f"!{reason}" if value is None else value_of(value)
    return found


def decode(samples: pa.RecordBatch, of: Decoders) -> pa.Table:
    return MessageDecoder(of).decode(pa.Table.from_batches([samples]))


def value_of(variant: dict[str, bytes]) -> Any:
    return json.loads(VariantVal(variant["value"], variant["metadata"]).toJson())


def outcome(payload: Any, encoding: str, named: str | None = None, key: str = "a") -> Any:
    return outcomes(Decoders(), (payload, encoding, named, key))[0]


# ---- which decoder


@pytest.mark.parametrize(
    ("payload", "encoding", "named", "value"),
    [
        (b'{"a": [1, null]}', "application/json", None, {"a": [1, None]}),
        (b"1.5", "text/json", "fleet.Pose", 1.5),
        (b"[]", "application/json-patch+json", None, []),
        (b"-7", "application/integer", None, -7),
        ('grüß "dich"\n\\ \x00'.encode(), "zenoh/string", None, 'grüß "dich"\n\\ \x00'),
        (b"a,b\n", "text/csv", None, "a,b\n"),
        (b"gr\xfc\xdf", "text/plain", "charset=iso-8859-1", "grüß"),
        ("grüß".encode("utf-16"), "text/plain", "utf-16", "grüß"),
        (b"pose", "text/plain", "fleet.Pose", "pose"),
        (cbor2.dumps({"a": b"\x00", 1: 2.5}), "application/cbor", None, {"a": "AA==", "1": 2.5}),
        (b"\x00\x00\x00\x00\x00\x00\xf8\x3f", "zenoh/serialized", "float64", 1.5),
        (b"\x02\x01\x00\x02\x00", "zenoh/serialized", "list[int16]", [1, 2]),
    ],
)
def test_encodings_that_need_no_rule(
    payload: bytes, encoding: str, named: str | None, value: Any
) -> None:
    assert outcome(payload, encoding, named) == value


@pytest.mark.parametrize(
    "encoding", ["zenoh/bytes", None, "application/yaml", "image/png", "application/json-seq"]
)
def test_samples_without_a_decoder_are_left_out(encoding: str | None) -> None:
    assert outcomes(Decoders(), (b"x", encoding)) == [NO_DECODER]


def test_a_batch_of_everything_stays_in_order() -> None:
    samples = [
        (b"1", "application/json"),
        (b"x", "zenoh/bytes"),
        (b"\xff", "text/plain"),
        (b"2", "application/json"),
        (b"t", "text/plain"),
        (b"}", "application/json"),
        (None, "text/plain"),
    ]
    found = outcomes(Decoders(), *samples)
    assert found[:2] == [1, NO_DECODER]
    assert found[2] == "!the text is not UTF-8"
    assert found[3:5] == [2, "t"]
    assert found[5].startswith("!not JSON: ")
    assert found[6] == ""


def test_the_first_rule_that_matches_wins() -> None:
    of = Decoders(
        [
            {"key": "robot/*/raw", "use": "none"},
            {"key": "robot/**", "encoding": "application/json", "use": "text"},
            {"schema": "u*", "use": "number", "type": "uint8"},
            {"key": "lidar", "use": "number", "type": "list[float32]", "order": "big"},
        ]
    )
    found = outcomes(
        of,
        (b"1", "application/json", None, "robot/7/raw"),
        (b"1", "application/json", None, "robot/7"),
        (b"1", "application/json", None, "else"),
        (b"\x07", "zenoh/bytes", "u8", "x"),
        (struct.pack(">2f", 0.5, math.inf), "zenoh/bytes", None, "lidar"),
        (b"123", "zenoh/bytes", None, "lidar"),
    )
    assert found[:5] == [NO_DECODER, "1", 1, 7, [0.5, "Infinity"]]
    assert "multiple of 4" in found[5]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"use": "json"}, "give a key, an encoding or a schema"),
        ({"key": "a", "use": "jsn"}, "did you mean 'json'"),
        ({"key": "a//b", "use": "json"}, "Key Expr"),
        ({"key": "a", "use": "text", "charst": "x"}, "did you mean 'charset'"),
        ({"key": "a", "use": "text", "charset": "hex"}, "charset 'hex' is not known"),
        ({"key": "a", "use": "text", "charset": 8}, "is a text, not 8"),
        ({"key": "a", "use": "number"}, "needs 'type'"),
        ({"key": "a", "use": "number", "type": "int7"}, "type 'int7'"),
        ({"key": "a", "use": "serialized", "type": "list[x]"}, "there is no 'x'"),
        ({"key": "a", "use": "protobuf", "descriptor": "none.desc"}, "No such file"),
        ({"key": "a", "use": "cdr", "distro": "noetic"}, "there is no distro"),
        ({"key": "a", "use": "cdr", "definitions": "nowhere"}, "0 .msg and .idl files"),
        ({"key": "a", "use": "cdr", "type": "my/msg/None"}, "not known"),
        ({"key": "a", "use": "no.module:here"}, "No module named 'no'"),
        ({"key": "a", "use": "mine:missing"}, "there is no function 'missing'"),
    ],
)
def test_a_rule_that_cannot_work_is_refused_by_name(
    tmp_path: Path, rule: dict[str, Any], said: str
) -> None:
    (tmp_path / "mine.py").write_text("")
    with pytest.raises(ZError, match=r"\[\[decoders\]\] 1|Key Expr") as refused:
        Decoders([rule], tmp_path).check()
    assert said in str(refused.value)


# ---- texts


@pytest.mark.parametrize(
    "text",
    [
        *('{"a":1}x', '{"a":1}{"b":2}', '{"a":1}}', '{"a{":1}x}', "1 2", "1,2", "true,false"),
        *("", " ", "NaN", "[Infinity]", "[1,]", '"a', "[" * 5000, "{" * 5000, "\ufeff1", "nul"),
    ],
)
def test_json_that_is_not_one_value_fails(text: str) -> None:
    assert outcome(text.encode(), "application/json").startswith("!not JSON: ")


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name twice")
    return dict(pairs)


@settings(max_examples=300)
@given(st.text(alphabet='{}[]",:\\ \n1-ae', max_size=24))
def test_texts_are_taken_if_they_are_one_value(text: str) -> None:
    found = outcome(text.encode(), "application/json")
    try:
        value = json.loads(text, object_pairs_hook=distinct)
    except ValueError:
        assert found.startswith("!not JSON")
    else:
        assert found == value


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


@settings(max_examples=60)
@given(JSON, st.integers(0, 40))
def test_json_passes_as_it_is_however_deep(value: Any, depth: int) -> None:
    for _ in range(depth):
        value = [value]
    text = json.dumps(value, ensure_ascii=False)
    assert outcomes(Decoders(), (text.encode("utf-8", "replace"), "application/json")) != [
        NO_DECODER
    ]
    if text.isprintable():
        assert outcome(text.encode(), "application/json") == value


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=5) | st.text(max_size=4).map(str.encode), max_size=60))
def test_invalid_utf8_fails_row_by_row(payloads: list[bytes]) -> None:
    texts, good = values.decode_utf8(pa.array(payloads, pa.binary()))
    for data, text, fine in zip(payloads, texts.to_pylist(), good.tolist(), strict=True):
        try:
            assert (text, fine) == (data.decode(), True)
        except UnicodeDecodeError:
            assert (text, fine) == (None, False)


@settings(max_examples=40)
@given(st.lists(st.text(max_size=8), max_size=8), st.integers(0, 3))
def test_every_text_can_be_quoted(texts: list[str], skip: int) -> None:
    column = pa.array(texts, pa.string()).slice(skip)
    assert [json.loads(text) for text in values.quote_json(column).to_pylist()] == texts[skip:]


# ---- numbers and what z_serialize writes


@pytest.mark.parametrize("name", ["float32", "list[float32]"])
def test_a_signalling_nan_is_a_nan(name: str) -> None:
    of = Decoders([{"key": "**", "use": "number", "type": name}])
    (found,) = outcomes(of, (b"\x00\x00\x81\x7f", "zenoh/bytes"))
    assert found in ("NaN", ["NaN"])


@pytest.mark.parametrize("name", numeric.TYPES)
def test_numbers_are_those_of_numpy(name: str) -> None:
    kind = np.dtype(numeric.TYPES[name])
    raw = np.random.default_rng(7).bytes(kind.itemsize * 50)
    orders: tuple[Literal["<", ">"], ...] = ("<", ">")
    for order in orders:
        ordered = kind.newbyteorder(order)
        expected = [plain(value) for value in np.frombuffer(raw, ordered).tolist()]
        width = kind.itemsize
        column = pa.array([raw[at : at + width] for at in range(0, len(raw), width)], pa.binary())
        texts, _ = numeric.decode_numbers(column.slice(3), ordered)
        assert [json.loads(text) for text in texts.to_pylist()] == expected[3:]
        texts, _ = numeric.decode_lists(pa.array([raw, b"", raw[:width]], pa.binary()), ordered)
        assert [json.loads(text) for text in texts.to_pylist()] == [expected, [], expected[:1]]


def plain(number: float) -> Any:
    if isinstance(number, int) or math.isfinite(number):
        return number
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(number)]


@pytest.mark.parametrize(
    ("value", "named", "expected"),
    [
        (reference.UInt8(200), "uint8", 200),
        (reference.Int64(-5), "int64", -5),
        (reference.Float32(0.1), "float32", struct.unpack("f", struct.pack("f", 0.1))[0]),
        (2.5, "float", 2.5),
        (-3, "int", -3),
        (True, "bool", True),
        (reference.UInt128(2**128 - 1), "uint128", str(2**128 - 1)),
        ("grüß", "str", "grüß"),
        (b"ab", "bytes", "YWI="),
        ([0.5, 1.5, math.nan], "list[float64]", [0.5, 1.5, "NaN"]),
        ([reference.Int8(-1)] * 300, "list[int8]", [-1] * 300),
        ([], "list[float64]", []),
        ([["a"], []], "list[list[str]]", [["a"], []]),
        ({"a": 1, "b": 2}, "dict[str, int32]", {"a": 1, "b": 2}),
        ({3: [True]}, "dict[int32,list[bool]]", {"3": [True]}),
        (("x", 1.5, (2, False)), "tuple[str, float64, tuple[int32, bool]]", ["x", 1.5, [2, False]]),
        ({"c", "a", "b"}, "set[str]", ["a", "b", "c"]),
    ],
)
def test_what_eclipse_zenoh_serializes(value: Any, named: str, expected: Any) -> None:
    payload = reference.z_serialize(value).to_bytes()
    assert outcome(payload, "zenoh/serialized", named) == expected
    assert outcome(payload + b"\x00", "zenoh/serialized", named).startswith("!")


def test_a_serialized_payload_needs_a_type_and_says_so() -> None:
    assert "nothing says the type" in outcome(b"\x00", "zenoh/serialized")
    assert "there is no 'vec'" in outcome(b"\x00", "zenoh/serialized", "vec[int8]")
    of = Decoders([{"encoding": "zenoh/serialized", "use": "serialized", "type": "int8"}])
    assert outcomes(of, (b"\x01", "zenoh/serialized")) == [1]


@pytest.mark.parametrize(
    "text",
    [
        *("", "list", "list[", "list[]", "list[int8", "list[int8]]", "list[int8,int8]"),
        *("dict[str]", "int8 int8", "tuple[int8 int8]", "[", "int8;", "x" * 2000),
        "list[" * 40 + "int8" + "]" * 40,
    ],
)
def test_an_invalid_type_is_refused(text: str) -> None:
    with pytest.raises(ZError, match="is not a valid type"):
        serialized.parse_type(text)


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(-(2**15), 2**15 - 1), max_size=200), max_size=6))
def test_lists_by_the_column_are_those_read_one_by_one(lists: list[list[int]]) -> None:
    payloads = [
        *(ext.z_serialize([ext.Int16(n) for n in numbers]).to_bytes() for numbers in lists),
        b"",
        b"\x81\x00\x05\x00",  # a count with a byte too many
        b"\x02\x01\x00",
        b"\xff" * 12,
    ]
    found = outcomes(
        Decoders(), *((payload, "zenoh/serialized", "list[int16]") for payload in payloads)
    )
    assert found[: len(lists)] == lists
    assert found[len(lists) + 1] == [5]
    assert all(found[len(lists) + at].startswith("!deserialization error") for at in (0, 2, 3))


# ---- CBOR, Protocol Buffers, CDR


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (datetime(2026, 8, 22, 10, tzinfo=UTC), "2026-08-22T10:00:00+00:00"),
        (Decimal("1.50"), "1.50"),
        (2**70, 2**70),
        (10**38, str(10**38)),
        (cbor2.CBORTag(4000, [1]), {"tag": 4000, "value": [1]}),
        (cbor2.undefined, None),
        (cbor2.CBORSimpleValue(99), {"simple": 99}),
        ({(1, 2): -math.inf, None: b""}, {"[1,2]": "-Infinity", "null": ""}),
        ({True: 1, "x": {2.5: 3}}, {"true": 1, "x": {"2.5": 3}}),
    ],
)
def test_cbor_has_a_form_for_all(value: Any, expected: Any) -> None:
    assert outcome(cbor2.dumps(value), "application/cbor") == expected


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"", "not CBOR"),
        (b"\x01\x02", "1 byte after it"),
        (b"\x81" * 500 + b"\x01", "depth"),
        (b"\xa2\x01\x01\x61\x31\x02", "two keys of one object"),
        (b"\xa2\x01\x01\x01\x02", "Duplicate"),
        (b"\xd8\x1c\x81\xd8\x1d\x00", "nested deeper"),
        (b"\x9b" + b"\xff" * 8, "not CBOR"),
        (b"\x5b\x00\x00\x00\xff\xff\xff\xff\xff", "not CBOR"),
        (b"\xc2\x59\x07\xd0" + b"\xff" * 2000, "bits is too long"),
    ],
)
def test_hostile_cbor_fails_with_a_reason(payload: bytes, said: str) -> None:
    assert said in outcome(payload, "application/cbor")


def test_a_small_payload_cannot_become_a_large_value() -> None:
    item: Any = ["x" * 1000]
    for _ in range(30):
        item = [item, item]
    small = cbor2.dumps(item, value_sharing=True)
    assert len(small) < 3000
    assert "larger than" in outcome(small, "application/cbor")


def described(folder: Path) -> dict[str, Any]:
    """A rule for `fleet.Imu` {double x; repeated int64 n; bytes raw; Imu next; string name}."""
    kind = descriptor_pb2.FieldDescriptorProto
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="imu.proto", package="fleet", syntax="proto3")
    message = file.message_type.add(name="Imu")
    for number, (name, what, repeated) in enumerate(
        [
            ("x", kind.TYPE_DOUBLE, False),
            ("n", kind.TYPE_INT64, True),
            ("raw", kind.TYPE_BYTES, False),
            ("next", kind.TYPE_MESSAGE, False),
            ("frame_id", kind.TYPE_STRING, False),
        ],
        1,
    ):
        message.field.add(
            name=name,
            number=number,
            type=what,
            label=kind.LABEL_REPEATED if repeated else kind.LABEL_OPTIONAL,
            type_name=".fleet.Imu" if what == kind.TYPE_MESSAGE else None,
        )
    (folder / "imu.desc").write_bytes(files.SerializeToString())
    return {"encoding": "application/protobuf", "use": "protobuf", "descriptor": "imu.desc"}


def test_protobuf_by_its_descriptors(tmp_path: Path) -> None:
    of = Decoders([described(tmp_path)], tmp_path)
    of.check()
    payload = b"\x09" + struct.pack("<d", 0.5) + b"\x12\x01\x07" + b"\x22\x03\x2a\x01f"
    assert outcomes(of, (payload, "application/protobuf", "fleet.Imu")) == [
        {
            "x": 0.5,
            "n": ["7"],
            "raw": "",
            "frame_id": "",
            "next": {"x": 0.0, "n": [], "raw": "", "frame_id": "f"},
        }
    ]
    bad = outcomes(
        of,
        (b"\xff", "application/protobuf", "fleet.Imu"),
        (b"", "application/protobuf", "fleet.Other"),
        (b"", "application/protobuf"),
        (b"\x22\x00" * 5, "application/protobuf", "type.googleapis.com/fleet.Imu"),
    )
    assert "not a fleet.Imu" in bad[0]
    assert "no message 'fleet.Other'" in bad[1]
    assert "nothing names the message" in bad[2]
    assert bad[3]["next"]["x"] == 0.0
    assert "nothing describes the message" in outcome(b"", "application/protobuf", "fleet.Imu")


def test_invalid_descriptors_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.desc").write_bytes(b"\xff\xff")
    rule = {"key": "a", "use": "protobuf", "descriptor": "bad.desc"}
    with pytest.raises(ZError, match="--descriptor_set_out"):
        Decoders([rule], tmp_path).check()


STORE = get_typestore(Stores.LATEST)


def cdr(name: str, *fields: Any) -> bytes:
    return bytes(STORE.serialize_cdr(STORE.types[name](*fields), name))


def test_cdr_by_schema_by_key_and_by_rule() -> None:
    text = cdr("std_msgs/msg/String", "grüß")
    point = cdr("geometry_msgs/msg/Vector3", 1.0, math.nan, -2.0)
    spoken = "0/chatter/std_msgs::msg::dds_::String_/RIHS01_df66"
    pushed = "0/a/b/geometry_msgs::msg::dds_::Vector3_/RIHS01_12"
    of = Decoders([{"key": "twist", "use": "cdr", "type": "geometry_msgs/Vector3"}])
    found = outcomes(
        of,
        (text, "application/cdr", "std_msgs/msg/String"),
        (text, "application/cdr", "std_msgs/String"),
        (text, "application/cdr", "std_msgs::msg::dds_::String_"),
        (text, "zenoh/bytes", None, spoken),
        (point, "zenoh/bytes", None, pushed),
        (text, None, None, spoken),
        (point, "zenoh/bytes", None, "twist"),
        (point, "application/cdr", "my_msgs/msg/Unknown"),
        (point[:-3], "application/cdr", "geometry_msgs/msg/Vector3"),
        (point, "application/cdr"),
    )
    said, moved = {"data": "grüß"}, {"x": 1.0, "y": "NaN", "z": -2.0}
    assert found[:7] == [said, said, said, said, moved, said, moved]
    assert "`definitions`" in found[7]
    assert "not a geometry_msgs/msg/Vector3" in found[8]
    assert "nothing names the type" in found[9]


def test_cdr_of_ones_own_definitions(tmp_path: Path) -> None:
    folder = tmp_path / "msgs" / "my_robot" / "msg"
    folder.mkdir(parents=True)
    (folder / "Part.msg").write_text("uint8[] raw\nfloat32[2] xy\n")
    (folder / "Whole.msg").write_text("my_robot/Part[] parts\nstd_msgs/Empty nothing\nbool ok\n")
    of = Decoders([{"encoding": "application/cdr", "use": "cdr", "definitions": "msgs"}], tmp_path)
    of.check()
    payload = b"\x00\x01\x00\x00" + struct.pack("<II2s2xffBB", 1, 2, b"\x01\x02", 0.5, 2.0, 0, 1)
    value = {"parts": [{"raw": "AQI=", "xy": [0.5, 2.0]}], "nothing": {}, "ok": True}
    assert outcomes(of, (payload, "application/cdr", "my_robot/msg/Whole")) == [value]
    many = payload[:4] + b"\xff\xff\xff\x7f"
    assert outcomes(of, (many, "application/cdr", "my_robot/msg/Whole"))[0].startswith("!")


# ---- hostile bytes


EVERY = [
    *((use, {}, None) for use in ("json", "text", "cbor", "protobuf", "cdr", "serialized")),
    ("text", {"charset": "utf-16"}, None),
    ("number", {"type": "float32"}, None),
    ("number", {"type": "list[uint16]"}, None),
    ("serialized", {}, "dict[str, list[float64]]"),
    ("serialized", {}, "list[tuple[]]"),
    ("serialized", {}, "set[list[int8]]"),
    ("cdr", {}, "sensor_msgs/msg/PointCloud2"),
    ("cdr", {}, "diagnostic_msgs/msg/DiagnosticArray"),
    ("protobuf", {"descriptor": "imu.desc"}, "fleet.Imu"),
]


@pytest.mark.parametrize(("use", "arguments", "named"), EVERY)
def test_random_bytes_never_raise(
    tmp_path: Path, use: str, arguments: dict[str, str], named: str | None
) -> None:
    described(tmp_path)
    of = Decoders([{"key": "**", "use": use, **arguments}], tmp_path)

    @settings(max_examples=25)
    @given(st.lists(st.binary(max_size=60), min_size=1, max_size=5), st.binary(max_size=30))
    def check(payloads: list[bytes], tail: bytes) -> None:
        payloads.append(b"\x00\x01\x00\x00" + tail)
        found = outcomes(of, *((payload, "zenoh/bytes", named) for payload in payloads))
        assert NO_DECODER not in found

    check()


@settings(max_examples=50)
@given(st.text(max_size=30), st.binary(max_size=10))
def test_random_schemas_never_raise(named: str, payload: bytes) -> None:
    for encoding in ("zenoh/serialized", "application/cdr", "application/protobuf", "text/plain"):
        outcome(payload, encoding, named.encode(errors="replace").decode())


def test_every_built_in_decoder_is_in_the_table_of_hostile_bytes() -> None:
    assert {use for use, _, _ in EVERY} == set(BUILT_IN)


def test_a_payload_that_is_too_large_fails_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoders, "MAX_PAYLOAD_BYTES", 4)
    found = outcomes(Decoders(), (b"[1,2]", "text/json"), (b"[1]", "text/json"))
    assert "larger than" in found[0]
    assert found[1] == [1]


# ---- users' decoders


MINE = """
import json
import pyarrow as pa
from beside import FACTOR

def doubled(payload, rows, by="2"):
    keys = rows.column("key").to_pylist()
    return pa.array([json.dumps([key, int(data) * FACTOR * int(by)])
                     for key, data in zip(keys, payload.to_pylist())])

def told(payload, rows):
    return pa.array([None, "1", "2"]), pa.array(["so", None, "all the same"])

def silent(payload, rows):
    return pa.nulls(len(payload))

def short(payload, rows):
    return pa.array(["1"])

def listed(payload, rows):
    return ["1", "2", "3"]

def broken(payload, rows):
    raise RuntimeError("always")
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "beside.py").write_text("FACTOR = 10\n")
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    return tmp_path


def test_a_users_function_gets_columns_and_arguments(mine: Path) -> None:
    of = Decoders([{"key": "n/*", "use": "mine:doubled", "by": "3"}], mine)
    of.check()
    samples = [(str(n).encode(), None, None, f"n/{n}") for n in range(100)]
    samples[41] = (b"x", None, None, "n/41")
    found = outcomes(of, *samples)
    assert found[41].startswith("!invalid literal")
    del found[41]
    assert found == [[f"n/{n}", n * 30] for n in range(100) if n != 41]


def test_what_a_users_function_returns_is_held_to_what_it_should(mine: Path) -> None:
    def of(name: str) -> list[Any]:
        rule = {"key": "**", "use": f"mine:{name}"}
        return outcomes(Decoders([rule], mine), (b"0",), (b"1",), (b"2",))

    assert of("told") == ["!so", 1, "!all the same"]
    assert of("silent") == ["!the decoder returned nothing"] * 3
    assert of("broken") == ["!RuntimeError: always"] * 3
    assert "did not return 3 texts" in of("short")[2]
    assert "did not return 3 texts" in of("listed")[0]
    assert of("gone")[0].startswith("!there is no function 'gone'")


def test_a_function_that_fails_is_not_called_for_ever(mine: Path) -> None:
    calls = 0

    def broken(payload: pa.Array, given: pa.RecordBatch) -> pa.Array:
        nonlocal calls
        calls += 1
        raise RuntimeError

    batch = rows(*[(b"x",)] * 3000)
    texts, reasons = decoders._call_user_decoder(broken, batch.column("payload"), batch)
    assert len(texts) == len(reasons) == 3000
    assert reasons.null_count == 0
    assert calls < decoders.MAX_TRIES + 20


def test_two_lakes_may_each_have_a_module_of_that_name(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "own.py").write_text(
            f"import pyarrow as pa\ndef f(payload, rows): return pa.array(['\"{name}\"'])\n"
        )
        assert outcomes(Decoders([{"key": "a", "use": "own:f"}], folder), (b"",)) == [name]


def test_the_page_shows_what_works(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "decoders.md").read_text()
    (tmp_path / "decoders.py").write_text(page.split("```python\n")[1].split("```")[0])
    rules = tomllib.loads(page.split("```toml\n")[1].split("```")[0])["decoders"]
    described(tmp_path)
    of = Decoders(rules, tmp_path)
    of.check()
    found = outcomes(
        of,
        (b"", "application/protobuf", "fleet.Imu", "robot/1/imu"),
        (b"", "image/png", None, "camera/1"),
        (b"\x18", None, None, "robot/1/raw"),
    )
    assert (found[0]["frame_id"], found[1:]) == ("", [NO_DECODER, {"level": 0.5}])


# ---- batches


def test_batches_in_the_form_of_the_table() -> None:
    batch = rows((b"1", "text/json"), (b"x", "zenoh/bytes"), (b"{", "text/json"), (b"t", "text/a"))
    stamp = {"time": None, "ntp64": 77, "id": "ab"}
    stamped = batch.set_column(
        batch.schema.get_field_index("timestamp"),
        "timestamp",
        pa.array([stamp, None, None, None], schema.TIMESTAMP),
    )
    marked = stamped.append_column("duplicate", pa.array([False, None, None, True]))
    (made,) = decode_batches([marked])
    assert made.schema.names == OUTPUT.names
    assert made.schema.field("value").type == schema.VARIANT
    assert made.column("hlc").to_pylist()[0] == 77
    assert made.column("day").to_pylist()[0].isoformat() == "2023-11-14"
    assert made.column("offset").to_pylist() == [0, 2]
    assert made.column("decoder").to_pylist() == ["json", "json"]
    assert made.column("value").to_pylist() == [{"value": b"\x0c\x01", "metadata": b"\1\0\0"}, None]
    assert made.column("payload").to_pylist() == [None, b"{"]
    assert list(decode_batches([batch.slice(1, 1), batch.slice(0, 0)])) == []


def test_coded_texts_are_decoded_alike() -> None:
    batch = rows((b"1", "text/json"), (b"x", None), (b"{", "text/json"), (b"t", "text/a", "utf-8"))
    coded = dictionary_encode(pa.Table.from_batches([batch]))
    plain = MessageDecoder(Decoders()).decode(pa.Table.from_batches([batch]))
    assert MessageDecoder(Decoders()).decode(coded).to_pylist() == plain.to_pylist()


def test_large_batches_are_decoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_PIECE_BYTES", 10)
    sizes = [4, 6, 1, 30, 5, 5, 0]
    made = list(decode_batches([rows(*((b"x" * n, "text/plain") for n in sizes))]))
    assert [batch.num_rows for batch in made] == [2, 1, 1, 3]
    assert pa.Table.from_batches(made)["offset"].to_pylist() == list(range(7))


def test_a_column_that_lacks_is_named() -> None:
    with pytest.raises(ZError, match="columns encoding, schema"):
        list(decode_batches([rows((b"",)).select(["key", "payload"])]))


def test_a_rule_is_what_a_section_says() -> None:
    rule = Rule.of({"key": "a/**/*", "use": "m.n:f", "depth": 3})
    assert (rule.key, rule.arguments) == ("a/*/**", {"depth": 3})
    assert decode(rows((b"1",)), Decoders()).num_rows == 0


# ---- on Spark


@pytest.mark.spark
def test_messages_on_spark(spark: "SparkSession", tmp_path: Path) -> None:
    """Values come back from VARIANT as they were, and nothing behind a value is overlooked."""
    from pyspark.sql import functions as F

    (tmp_path / "own.py").write_text(
        "import pyarrow as pa\ndef f(payload, rows): return pa.array(['{no json'] * len(rows))\n"
    )
    project = Project(
        home=tmp_path,
        name="t",
        log=tmp_path,
        tables=tmp_path,
        decoders=({"key": "own", "use": "own:f"},),
    )
    good: list[tuple[Any, ...]] = [
        (json.dumps({"b": [1, None, True, "grüß\u0000"], "a": {"x": -0.5}}).encode(), "text/json"),
        (b"null", "application/json"),
        (b'"say \\"hi\\""\n', "zenoh/string"),
        (cbor2.dumps({"n": 2**64, "raw": b"ab", "deep": [[[{}]]]}), "application/cbor"),
        (struct.pack("<d", 1e300), "zenoh/serialized", "float64"),
        (("[" * 40 + "]" * 40).encode(), "application/json"),
    ]
    bad: list[tuple[Any, ...]] = [
        (b'{"a":1}x', "application/json"),
        (b'{"a":1,"a":2}', "application/json"),
        (("[" * 3000 + "]" * 3000).encode(), "application/json"),
        (b"\xff", "text/plain"),
        (b"raw", "zenoh/bytes", None, "own"),
    ]
    batch = rows(*good, *bad, (b"1", "zenoh/bytes"), (b"1", "text/json"), (b"2", "text/json"))
    count = batch.num_rows
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["kind"] = pa.array(["put"] * (count - 2) + ["delete", "put"])
    columns["duplicate"] = pa.array([False] * (count - 1) + [True])
    columns["attachment"] = pa.nulls(count, pa.binary())
    pq.write_table(pa.table(columns), tmp_path / "samples.parquet")
    frame = spark.read.parquet(str(tmp_path / "samples.parquet"))

    found = decode_samples(frame, project)
    assert found.columns == [*schema.MESSAGES.names, "payload", "reason"]
    assert dict(found.dtypes)["value"] == "variant"
    shown = found.withColumn("json", F.to_json("value")).drop("value")
    made = shown.orderBy("offset").collect()

    assert [row.offset for row in made] == list(range(len(good) + len(bad)))
    for row, sample in zip(made[: len(good)], good, strict=True):
        assert (row.payload, row.reason) == (None, None)
        assert json.loads(row.json) == outcome(*sample)
        assert row.day.isoformat() == "2023-11-14"
    for row, sample in zip(made[len(good) :], bad, strict=True):
        assert (row.json, bytes(row.payload)) == (None, sample[0])
    reasons = [row.reason for row in made[len(good) :]]
    assert "Extra data" in reasons[0]
    assert reasons[1] == messages.REFUSED
    assert "not JSON" in reasons[2]
    assert reasons[3] == "the text is not UTF-8"
    assert "not JSON: Expecting property name" in reasons[4]
    assert made[-1].decoder == "own:f"
    assert base64.b64decode(json.loads(made[3].json)["raw"]) == b"ab"
