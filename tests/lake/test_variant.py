"""JSON texts as VARIANT: the bytes that Spark's own `try_parse_json` makes of each text."""

import json
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.support.json_texts import NAMES, TEXTS, mutations, random_texts
from zenlake.lake.decoders.variant import to_variants
from zenlake.lake.kernels import variant as kernel
from zenlake.lake.kernels.variant import REFUSED, TAKEN, TRAILING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Parts = tuple[bytes, bytes]
"Value and metadata of a variant."

GENERATED = 3_000  # Texts of each kind that are compared with Spark.


def variants(texts: Sequence[str | None]) -> list[Parts | None]:
    """Return what the kernel makes of texts; a value with text after it counts, as for Spark."""
    found = to_variants(pa.array(texts, pa.string()))
    value, metadata = (found.values.field(name) for name in ("value", "metadata"))
    return [
        None if verdict == REFUSED else (value[at].as_py(), metadata[at].as_py())
        for at, verdict in enumerate(found.verdicts.tolist())
    ]


def spark_variants(spark: "SparkSession", texts: Sequence[str]) -> list[Parts | None]:
    from pyspark.sql import functions as F

    rows = spark.createDataFrame(list(enumerate(texts)), "number int, text string")
    parsed = rows.select("number", F.try_parse_json("text").alias("variant")).collect()
    found = {row.number: row.variant for row in parsed}
    return [
        None if (made := found[at]) is None else (bytes(made.value), bytes(made.metadata))
        for at in range(len(texts))
    ]


def assert_equal(texts: Sequence[str], got: list[Parts | None], want: list[Parts | None]) -> None:
    differ = [
        (text[:200], mine, theirs)
        for text, mine, theirs in zip(texts, got, want, strict=True)
        if mine != theirs
    ]
    assert differ == [], differ[:3]


# ---- beside Spark


@pytest.mark.spark
@pytest.mark.parametrize(
    "texts",
    [
        TEXTS,
        list(random_texts(random.Random(1), GENERATED)),
        list(mutations(random.Random(2), GENERATED)),
    ],
    ids=["chosen", "generated", "mutated"],
)
def test_spark_makes_the_same_bytes(spark: "SparkSession", texts: list[str]) -> None:
    want = spark_variants(spark, texts)
    assert_equal(texts, variants(texts), want)
    assert sum(parts is not None for parts in want) > len(texts) // 4


# ---- recorded from Spark


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("text", "value", "metadata"),
    [
        ("null", "00", "010000"),
        ("[true, false]", "030200010204 08".replace(" ", ""), "010000"),
        ("-128", "0c80", "010000"),
        ("32768", "1400800000", "010000"),
        ("-9223372036854775808", "180000000000000080", "010000"),
        ("-9223372036854775809", "2800ffffffffffffff7fffffffffffffffff", "010000"),
        ("1.0", "20010a000000", "010000"),
        ("123456789.123456789", "2409155fd0ac4b9bb601", "010000"),
        ("1e3", "1c0000000000408f40", "010000"),
        ("4.9e-324", "1c0100000000000000", "010000"),
        ('"\\ud83d\\ude00"', "11f09f9880", "010000"),
        ('{"b":1,"a":2}', "020201000200040c010c02", "01020001026261"),
        (
            '{"a":{"b":1},"b":{"a":2}}',
            "0202000100070e02010100020c0102010000020c02",
            "01020001026162",
        ),
        ('{"\U0001f600":1,"\uffff":2}', "020200010002040c010c02", "0102000407f09f9880efbfbf"),
    ],
)
def test_bytes_as_spark_wrote_them(text: str, value: str, metadata: str) -> None:
    assert variants([text]) == [(bytes.fromhex(value), bytes.fromhex(metadata))]


# ---- columns


@pytest.mark.kernel
def test_a_column_with_every_verdict() -> None:
    texts = pa.array(["x", '{"a":1e-300}', None, "1 2", '{"a":1}', '{"a":2e300,"a":1}'])
    found = to_variants(texts)
    assert found.verdicts.tolist() == [REFUSED, TAKEN, REFUSED, TRAILING, TAKEN, REFUSED]
    assert found.values.is_valid().to_pylist() == [False, True, False, False, True, False]


@pytest.mark.kernel
def test_a_slice_of_a_column() -> None:
    texts = pa.array(["x", "[1]", '"a"', "x"]).slice(1, 2)
    assert (
        to_variants(texts).values.to_pylist()
        == to_variants(pa.array(["[1]", '"a"'])).values.to_pylist()
    )
    assert to_variants(texts.slice(0, 0)).verdicts.tolist() == []


@pytest.mark.kernel
def test_rows_that_do_not_fit_a_buffer_go_into_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    from zenlake.lake.decoders import variant

    texts = [json.dumps({f"name {n}": [n, n / 7e-20, "x" * n]}) for n in range(60)]
    whole = variants(texts)
    monkeypatch.setattr(variant, "MAX_COLUMN_BYTES", 100)
    monkeypatch.setattr(variant, "HARD_NUMBERS", 1)
    assert variants(texts) == whole


@pytest.mark.kernel
def test_hard_numbers_are_python_s() -> None:
    numbers = ["1.7976931348623157e308", "2.2250738585072011e-308", "-1.2345678901234567e-7"]
    made = variants([f"[{number}]" for number in numbers])
    for parts, number in zip(made, numbers, strict=True):
        assert parts is not None
        assert parts[0][-9:] == b"\x1c" + memoryview(pa.array([float(number)]).buffers()[1])[:8]


# ---- limits


def steps_of_names(count: int) -> Iterator[str]:
    yield json.dumps({str(n): 0 for n in range(count)})
    yield json.dumps({str(n): 0 for n in range(count, 0, -1)})


@pytest.mark.kernel
def test_many_names_are_sorted_and_found() -> None:
    for text in steps_of_names(500):
        (parts,) = variants([text])
        assert parts is not None
        count = int.from_bytes(parts[0][1:5], "little")
        assert count == 500
        ids = [int.from_bytes(parts[0][5 + 2 * n : 7 + 2 * n], "little") for n in range(count)]
        names = list(json.loads(text))
        assert [names[number] for number in ids] == sorted(names)


@pytest.mark.kernel
@pytest.mark.parametrize("name", NAMES)
def test_a_name_twice_is_refused_however_it_is_written(name: str) -> None:
    escaped = "".join(f"\\u{ord(character):04x}" for character in name if ord(character) < 0x1_0000)
    if len(escaped) == 6 * len(name):
        assert variants([f'{{"{escaped}":1,{json.dumps(name)}:2}}']) == [None]
    assert variants([f"{{{json.dumps(name)}:1,{json.dumps(name)}:2}}"]) == [None]


@pytest.mark.kernel
def test_depth_is_limited() -> None:
    deep = kernel.MAX_DEPTH
    made = variants(["[" * deep + "]" * deep, "[" * (deep + 1) + "]" * (deep + 1)])
    assert [parts is None for parts in made] == [False, True]


@pytest.mark.kernel
@pytest.mark.parametrize("opened", ["[", '{"a":', '[{"":', '[1,[1,{"a":1,"b":', "[" * 999 + "1,"])
@pytest.mark.parametrize("times", [1, 7, 200, 999])
def test_brackets_that_are_never_closed_stay_within_the_buffers(opened: str, times: int) -> None:
    """Alone in its column, so that the buffers are as small as they get."""
    assert variants([opened * times]) == [None]


@pytest.mark.kernel
def test_a_text_that_is_alone_stays_within_the_buffers() -> None:
    """What one text needs is checked with bounds; within a column longer ones would hide it."""
    for text in mutations(random.Random(3), 200):
        assert variants([text]) == variants([text, " " * 4096])[:1]
