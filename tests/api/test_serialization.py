"""z_serialize and z_deserialize, value for value and byte for byte against the reference."""

import copy
import itertools
import math
import pickle
import struct
import typing
from dataclasses import dataclass
from typing import Any

import pytest
import zenoh
import zenoh.ext
from hypothesis import given
from hypothesis import strategies as st

from zenlake import ext
from zenlake.api.values.zbytes import ZBytes
from zenlake.errors import ZError
from zenlake.ext import serialization
from zenlake.ext.serialization import MAX_DEPTH, MAX_EMPTY_ITEMS, z_deserialize, z_serialize

INTEGERS = [f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64, 128)]
FLOATS = ["Float32", "Float64"]


@dataclass(frozen=True)
class Shape:
    """A type in neither module: `ours` and `theirs` make it, and values of it, in one of them."""

    name: str
    items: tuple["Shape", ...] = ()

    def type_in(self, module: Any) -> Any:
        items = tuple(item.type_in(module) for item in self.items)
        match self.name:
            case "list" | "set" | "frozenset":
                return GENERICS[self.name][items[0]]
            case "dict" | "tuple":
                return GENERICS[self.name][items]
        return module[self.name]

    def value_in(self, module: Any, value: Any) -> Any:
        """`value`, made of plain Python, as this type's value."""
        match self.name:
            case "list" | "set" | "frozenset":
                (item,) = self.items
                return GENERICS[self.name](item.value_in(module, v) for v in value)
            case "dict":
                key, item = self.items
                return {key.value_in(module, k): item.value_in(module, v) for k, v in value}
            case "tuple":
                return tuple(i.value_in(module, v) for i, v in zip(self.items, value, strict=True))
        return module[self.name](value)

    def plain(self) -> st.SearchStrategy[Any]:
        """Values of this type, of plain Python; pairs instead of a dict, lists instead of sets."""
        match self.name:
            case "list" | "set" | "frozenset":
                return st.lists(self.items[0].plain(), max_size=5)
            case "dict":
                return st.lists(st.tuples(*(i.plain() for i in self.items)), max_size=5)
            case "tuple":
                return st.tuples(*(item.plain() for item in self.items))
        return SCALARS[self.name]


def modules(of: Any, zbytes: type) -> dict[str, Any]:
    plain = {kind.__name__: kind for kind in (bool, int, float, str, bytes, bytearray)}
    return plain | {name: getattr(of, name) for name in INTEGERS + FLOATS} | {"ZBytes": zbytes}


GENERICS: dict[str, Any] = {kind.__name__: kind for kind in (list, set, frozenset, dict, tuple)}
OURS = modules(ext, ZBytes)
THEIRS = modules(zenoh.ext, zenoh.ZBytes)


def bounds(name: str) -> tuple[int, int]:
    bits = int(name.partition("Int")[2])
    return (0, (1 << bits) - 1) if name[0] == "U" else (-(1 << bits - 1), (1 << bits - 1) - 1)


SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int": st.integers(*bounds("Int32")),
    "float": st.floats(allow_nan=False),
    "str": st.text(max_size=200),
    "bytes": st.binary(max_size=200),
    "bytearray": st.binary(max_size=200),
    "ZBytes": st.binary(max_size=200),
    "Float32": st.floats(allow_nan=False),
    "Float64": st.floats(allow_nan=False),
} | {name: st.integers(*bounds(name)) for name in INTEGERS}

UNHASHABLE = {"bytearray"}


def tuple_or_frozenset(inner: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
    # Of a frozenset of sized numbers the reference makes a set, which no other set can hold.
    item = inner.filter(lambda shape: shape.name not in INTEGERS + FLOATS)
    return st.one_of(
        st.lists(inner, max_size=3).map(lambda items: Shape("tuple", tuple(items))),
        item.map(lambda shape: Shape("frozenset", (shape,))),
    )


scalars = st.sampled_from(sorted(SCALARS)).map(Shape)
hashable = st.recursive(
    scalars.filter(lambda shape: shape.name not in UNHASHABLE), tuple_or_frozenset, max_leaves=4
)


def grown(inner: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
    return st.one_of(
        inner.map(lambda item: Shape("list", (item,))),
        hashable.map(lambda item: Shape("set", (item,))),
        hashable.map(lambda item: Shape("frozenset", (item,))),
        st.tuples(hashable, inner).map(lambda pair: Shape("dict", pair)),
        st.lists(inner, max_size=4).map(lambda items: Shape("tuple", tuple(items))),
    )


shapes = st.recursive(scalars, grown, max_leaves=8)
shaped = shapes.flatmap(lambda shape: st.tuples(st.just(shape), shape.plain()))


def without_sets(shape: Shape) -> bool:
    return shape.name not in ("set", "frozenset") and all(map(without_sets, shape.items))


def neutral(value: Any) -> Any:
    """Return one form for equal values of the two modules, or of a quirk of theirs."""
    if isinstance(value, ZBytes | zenoh.ZBytes):
        return ("ZBytes", value.to_bytes())
    if isinstance(value, list | tuple):
        return (type(value).__name__, [neutral(v) for v in value])
    if isinstance(value, set | frozenset):
        return ("set", {repr(neutral(v)) for v in value})
    if isinstance(value, dict):
        return ("dict", {repr(neutral(k)): neutral(v) for k, v in value.items()})
    for plain in (bool, int, float):
        if isinstance(value, plain):
            return repr(plain(value))
    return value


@given(shaped)
def test_the_bytes_are_those_of_the_reference(case: tuple[Shape, Any]) -> None:
    shape, plain = case
    ours = z_serialize(shape.value_in(OURS, plain)).to_bytes()
    theirs = zenoh.ext.z_serialize(shape.value_in(THEIRS, plain)).to_bytes()
    if without_sets(shape):
        assert ours == theirs
    else:  # the order of a set is the interpreter's
        assert len(ours) == len(theirs)


@given(shaped)
def test_each_reads_what_the_other_wrote(case: tuple[Shape, Any]) -> None:
    shape, plain = case
    ours = z_serialize(shape.value_in(OURS, plain)).to_bytes()
    theirs = zenoh.ext.z_serialize(shape.value_in(THEIRS, plain)).to_bytes()
    here = z_deserialize(shape.type_in(OURS), ZBytes(theirs))
    there = zenoh.ext.z_deserialize(shape.type_in(THEIRS), zenoh.ZBytes(ours))
    assert neutral(here) == neutral(there)


@given(shaped)
def test_what_was_written_is_read(case: tuple[Shape, Any]) -> None:
    shape, plain = case
    value = shape.value_in(OURS, plain)
    data = z_serialize(value)
    again = z_deserialize(shape.type_in(OURS), data)
    assert type(again) is type(value)
    if without_sets(shape):
        assert z_serialize(again) == data


@given(shapes, st.binary(max_size=40))
def test_any_bytes_are_taken_or_refused_as_the_reference_does(shape: Shape, data: bytes) -> None:
    if any_count_is_huge(data):
        return  # the reference panics, or aborts the process for want of memory
    theirs: Any = ZError
    try:
        theirs = zenoh.ext.z_deserialize(shape.type_in(THEIRS), zenoh.ZBytes(data))
    except zenoh.ext.ZDeserializeError:
        with pytest.raises(ext.ZDeserializeError, match=r"^deserialization error: \w+ at byte "):
            z_deserialize(shape.type_in(OURS), ZBytes(data))
    else:
        assert neutral(z_deserialize(shape.type_in(OURS), ZBytes(data))) == neutral(theirs)


def any_count_is_huge(data: bytes) -> bool:
    """Whether a LEB128 of more than two bytes stands anywhere."""
    return any(a >= 0x80 and b >= 0x80 for a, b in itertools.pairwise(data))


COUNTS = [
    "00", "01", "8000", "8100", "818000", "ff", "80", "81808080808080808000",
    "8180808080808080808000", "81808080808080808002", "7f", "",
]  # fmt: skip


@pytest.mark.parametrize("count", COUNTS)
def test_counts_are_read_as_the_reference_does(count: str) -> None:
    data = bytes.fromhex(count) + b"a"
    try:
        theirs = zenoh.ext.z_deserialize(bytes, zenoh.ZBytes(data))
    except zenoh.ext.ZDeserializeError:
        with pytest.raises(ext.ZDeserializeError):
            z_deserialize(bytes, ZBytes(data))
    else:
        assert z_deserialize(bytes, ZBytes(data)) == theirs


@pytest.mark.parametrize("tp", [bytes, str, list[int], list[str], dict[int, int], list[list[bool]]])
def test_a_huge_count_is_refused_before_memory_is_taken(tp: Any) -> None:
    for data in (b"\xff" * 9 + b"\x01", b"\xff\xff\xff\xff\x7f" + b"a" * 10):
        with pytest.raises(ext.ZDeserializeError):
            z_deserialize(tp, ZBytes(data))


def test_items_without_bytes_are_bounded() -> None:
    nothing = list[tuple[()]]
    assert z_deserialize(nothing, z_serialize([(), ()])) == [(), ()]
    count = bytearray()
    serialization._write_count(count, MAX_EMPTY_ITEMS + 1)
    with pytest.raises(ext.ZDeserializeError, match="items do not fit"):
        z_deserialize(nothing, ZBytes(count))


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 1e40, -1e40, 1e-46, 3.4028235677973366e38, -0.0]
)
@pytest.mark.parametrize("collection", [False, True])
def test_floats_at_the_edge(value: float, collection: bool) -> None:
    ours, theirs = ext.Float32(value), zenoh.ext.Float32(value)
    a = z_serialize([ours, ours] if collection else ours).to_bytes()
    b = zenoh.ext.z_serialize([theirs, theirs] if collection else theirs).to_bytes()
    assert a == b
    assert (
        z_serialize(value).to_bytes()
        == zenoh.ext.z_serialize(value).to_bytes()
        == struct.pack("<d", value)
    )


class MyInt(int):
    pass


class MyList(list[int]):
    pass


@pytest.mark.parametrize(
    "value",
    [
        None, object(), 1j, MyInt(3), MyList(), memoryview(b"a"), [None], [1, "a"], [1, True],
        {1: 2, "a": 3}, {1: 2, 3: "a"}, {1, "a"}, 1 << 31, -(1 << 31) - 1, 1 << 70, [1 << 31],
        "\ud800", range(3), int, (None,), {"a": None},
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused_as_the_reference_does(value: Any) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)) as theirs:
        zenoh.ext.z_serialize(value)
    with pytest.raises(theirs.type) as ours:
        z_serialize(value)
    assert ours.type is theirs.type


def test_integers_of_one_size_do_not_mix_with_others() -> None:
    with pytest.raises(ValueError, match="must have the same type"):
        z_serialize([1, ext.Int8(1)])


def test_a_collection_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match=f"deeper than {MAX_DEPTH}"):
        z_serialize(endless)


def test_nesting_has_a_limit_both_ways() -> None:
    value: Any = 1
    tp: Any = int
    for _ in range(MAX_DEPTH):
        value, tp = [value], list[tp]
    assert z_deserialize(tp, z_serialize(value)) == value
    with pytest.raises(ValueError, match="deeper"):
        z_serialize([value])
    with pytest.raises(TypeError, match="deeper"):
        z_deserialize(list[tp], ZBytes(b"\0"))


@pytest.mark.parametrize(
    "tp",
    [
        list, set, frozenset, dict, tuple, tuple[int, ...], object, None, "int", int | str,
        MyInt, list[object], list[MyInt], 3,
    ],
)  # fmt: skip
def test_types_are_refused_as_the_reference_does(tp: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as theirs:
        zenoh.ext.z_deserialize(tp, zenoh.ZBytes(b"\0\0"))
    with pytest.raises(theirs.type) as ours:
        z_deserialize(tp, ZBytes(b"\0\0"))
    assert ours.type is theirs.type


@pytest.mark.parametrize("tp", [dict[str], [int], {}])  # type: ignore[misc]
def test_types_on_which_the_reference_panics_are_refused(tp: Any) -> None:
    with pytest.raises(TypeError):
        z_deserialize(tp, ZBytes(b"\0"))


@pytest.mark.parametrize(
    ("tp", "value"),
    [
        (typing.List[int], [1, 2]),  # noqa: UP006
        (typing.Dict[str, int], {"a": 1}),  # noqa: UP006
        (typing.Tuple[int, str], (1, "a")),  # noqa: UP006
        (typing.Set[int], {1}),  # noqa: UP006
    ],
)
def test_the_old_names_of_collections_are_taken_too(tp: Any, value: Any) -> None:
    assert z_deserialize(tp, z_serialize(value)) == value


def test_only_zbytes_are_read() -> None:
    with pytest.raises(TypeError, match="'bytes' object cannot be converted to 'ZBytes'"):
        z_deserialize(int, b"\0\0\0\0")  # type: ignore[arg-type]


def test_trailing_bytes_are_ignored() -> None:
    assert z_deserialize(int, ZBytes(b"\1\0\0\0\xff")) == 1


def test_items_keep_their_type() -> None:
    for tp in (list[ext.Int8], set[ext.Float32], frozenset[ext.UInt128], tuple[ext.Int64]):
        value = z_deserialize(tp, ZBytes(b"\1" + b"\1" * 16))
        (item,) = value
        assert type(item) in (ext.Int8, ext.Float32, ext.UInt128, ext.Int64)
        assert type(value) is typing.get_origin(tp)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_know_their_range(name: str) -> None:
    ours, theirs = getattr(ext, name), getattr(zenoh.ext, name)
    low, high = bounds(name)
    for number in (low, high):
        value = ours(i=number)
        assert value == number == theirs(number)
        assert type(value + 0) is int
        assert repr(value) == repr(number)
        for again in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
            assert type(again) is ours
            assert again == value
    for number in (low - 1, high + 1):
        with pytest.raises(AssertionError) as problem:
            theirs(number)
        with pytest.raises(AssertionError, match=str(problem.value)):
            ours(number)
    for wrong in ((), ("3",)):
        with pytest.raises(TypeError):
            ours(*wrong)


def test_every_name_of_the_reference_is_there() -> None:
    names = {name for name in dir(zenoh.ext) if not name.startswith("_")} - {"warnings"}
    assert names <= set(ext.__all__)
    assert names <= set(dir(ext))
    assert issubclass(ext.ZDeserializeError, ZError)
