"""Value types answer as those of eclipse-zenoh do: each line is run on both."""

import datetime
import inspect
from types import ModuleType
from typing import Any

import pytest
import zenoh

from zenlake import errors
from zenlake.api.values import encoding, enums, ids, instrumentation, selector, timestamps, zbytes
from zenlake.keyexpr import KeyExpr, SetIntersectionLevel

PLAIN = (bool, int, float, str, bytes, type(None), datetime.datetime, datetime.timedelta)
ERRORS = (TypeError, OverflowError, AttributeError, ValueError)
NAMES = [
    *["CongestionControl", "ConsolidationMode", "InterceptionPoint", "Locality", "Priority"],
    *["QueryTarget", "Reliability", "ReplyKeyExpr", "SampleKind", "SetIntersectionLevel"],
    *["WhatAmI", "WhatAmIMatcher", "ZenohId", "EntityGlobalId", "SourceInfo", "ZBytes"],
    *["Encoding", "Parameters", "Selector", "NTP64", "TimestampId", "Timestamp"],
    *["TimestampInstrumentation", "TimestampInstrumentationBuilder", "TimestampStack"],
    *["TimestampStackRecord", "TimestampContext"],
]
MODULES: list[ModuleType] = [*[encoding, enums, ids, instrumentation, selector, timestamps, zbytes]]
OURS: dict[str, Any] = {
    name: getattr(module, name)
    for name in NAMES
    for module in MODULES
    if getattr(module, name, None) is not None
}
OURS |= {"KeyExpr": KeyExpr, "SetIntersectionLevel": SetIntersectionLevel}
THEIRS: dict[str, Any] = {name: getattr(zenoh, name) for name in [*NAMES, "KeyExpr"]}
HELPERS = {"datetime": datetime, "U": datetime.UTC}


def plain(value: Any) -> Any:
    if isinstance(value, PLAIN) and type(value).__module__ in ("builtins", "datetime"):
        return value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return type(value).__name__, str(value)


def answer(line: str, names: dict[str, Any]) -> Any:
    try:
        return plain(eval(line, {**HELPERS, **names}))
    except (zenoh.ZError, errors.ZError):
        return "ZError"
    except ERRORS as error:
        return next(kind.__name__ for kind in ERRORS if isinstance(error, kind))


def of_each(template: str, values: list[str]) -> list[str]:
    return [template.replace("<>", value) for value in values]


ENUM_LINES = [
    *of_each("int(Priority.<>)", ["DATA", "DEFAULT", "MIN", "MAX", "REAL_TIME", "NUM"]),
    "Priority.NUM",
    *["str(Priority.DATA)", "repr(Priority.DATA)", "f'{Priority.DATA}'", "f'{SampleKind.PUT}'"],
    *["Priority.DATA == 5", "Priority.DATA != 5", "Priority.DATA == Priority.DEFAULT"],
    *["Priority.DATA == SampleKind.PUT", "WhatAmI.PEER == 2"],
    *["Priority.DATA is Priority.DATA", "Priority.DATA == 'x'", "WhatAmI.PEER == 'peer'"],
    *["str(SetIntersectionLevel.EQUALS)", "f'{SetIntersectionLevel.EQUALS}'"],
    *["repr(SetIntersectionLevel.DISJOINT)", "int(SetIntersectionLevel.INCLUDES)"],
    *["str(WhatAmI.PEER)", "repr(WhatAmI.PEER)", "f'{WhatAmI.PEER}'"],
    *of_each("WhatAmI(<>)", ["'peer'", "'router'", "'client'", "'Peer'", "'xx'", "''", "None"]),
    *of_each("WhatAmI.PEER | <>", ["WhatAmI.ROUTER", "'router'", "1", "'x'", "WhatAmI.PEER"]),
    *of_each(
        "WhatAmIMatcher(<>)",
        [
            *["'peer|router'", "'router|peer'", "'client'", "'peer|router|client'", "''", "'xx'"],
            *["None", "'peer|peer'", "'peer|'", "'|'", "' peer'", "'Peer'", "s='peer'", "1"],
            "WhatAmI.PEER",
        ],
    ),
    *of_each("WhatAmIMatcher.<>", ["empty()", "empty().peer()", "empty().is_empty()"]),
    *of_each("WhatAmIMatcher('peer').<>", ["router()", "client().router()", "is_empty()"]),
    *of_each("WhatAmIMatcher('peer').matches(<>)", ["WhatAmI.PEER", "'peer'", "'router'", "'x'"]),
    *of_each("<> in WhatAmIMatcher('peer')", ["WhatAmI.CLIENT", "'peer'", "'x'", "1"]),
    *["WhatAmIMatcher()", "bool(WhatAmIMatcher(''))"],
]

KEYS = [
    *["'a/b'", "'a/**/b'", "'a/*/b'", "'a/$*b'", "'a/b$*'", "'a/**/*'", "'a/**/**'", "''", "'/a'"],
    *["'a/'", "'a//b'", "'a b'", "'a#b'", "'a?b'", "'a$b'", "'a/$*'", "'@a/b'", "'**'", "'*'"],
    *["'a**'", "'a/*b'", "'a/**b'", "'héé/ß'", "'a/$*$*'"],
]
KEY_LINES = [
    *of_each("KeyExpr(<>)", [*KEYS, "'a/b$*$*c'", "s='a'", "key_expr='a'", "b'a'", "1", "None"]),
    "KeyExpr()",
    *of_each("KeyExpr.autocanonize(<>)", [*KEYS, "key_expr='a'", "1"]),
    *of_each("KeyExpr('a/b') <>", ["== 'a/b'", "== 'a//b'", "== 1", "!= 'a/c'", "/ 1"]),
    *of_each("KeyExpr('a/b') / <>", ["'c'", "KeyExpr('c')", "'**'"]),
    *of_each("KeyExpr('a/b').join(<>)", ["'c/*'", "'/c'", "1", "other='c'"]),
    *of_each("KeyExpr('a/**').join(<>)", ["'**'", "'*'", "'b/**'"]),
    *of_each("KeyExpr('a/b').concat(<>)", ["'c/d'", "'/'", "'*'", "'$*'", "1", "other='c'"]),
    *of_each("KeyExpr('a/b').intersects(<>)", ["'a/*'", "KeyExpr('a/**')", "'a//'", "'b'", "1"]),
    *of_each("KeyExpr('a/*').includes(<>)", ["'a/*'", "KeyExpr('a/b')", "'a//'", "'**'", "1"]),
    *of_each("KeyExpr('a/**').relation_to(<>)", ["'a/**'", "'a/b'", "'b/**'", "'*/b'", "'//'"]),
    *["repr(KeyExpr('a/b'))", "hash(KeyExpr('a/b')) == hash('a/b')", "{KeyExpr('a'): 1}.get('a')"],
    *["setattr(KeyExpr('a'), 'x', 1)", "'c' / KeyExpr('a')"],
]

BYTES_LINES = [
    *of_each("ZBytes(<>).to_bytes()", ["b'x'", "bytearray(b'x')", "'é'", "None", "''", "obj=b'a'"]),
    *of_each("ZBytes(<>)", ["[1]", "1", "1.5", "{}", "bytes=b'a'", "object()", ""]),
    *of_each("<>(ZBytes('hé'))", ["str", "bytes", "len", "bool", "iter"]),
    *of_each("ZBytes('hé').<>", ["to_string()", "as_shm()", "__getitem__(0)"]),
    *of_each("ZBytes('hé') == <>", ["'hé'", "b'h\\xc3\\xa9'", "bytearray(b'h')", "1", "None"]),
    *["ZBytes('hé') == ZBytes(b'h\\xc3\\xa9')", "ZBytes('') == None", "ZBytes('a') + ZBytes('a')"],
    *["hash(ZBytes('hé')) == hash('hé'.encode())", "bool(ZBytes(b''))"],
    *["str(ZBytes(b'\\xff'))", "ZBytes(b'\\xff').to_string()"],
    "ZBytes(type('S', (str,), {})('x')).to_bytes()",
    "type(ZBytes(type('S', (bytes,), {})(b'x')).to_bytes()).__name__",
]

ENCODINGS = [
    *["None", "'text/plain'", "'text/plain;utf-8'", "'foo/bar'", "'foo/bar;schema'", "';x'", "''"],
    *["'zenoh/bytes;abc'", "'zenoh/bytes'", "'TEXT/plain'", "'text/plain;'", "'text/plain;a;b'"],
]
ENCODING_LINES = [
    *of_each("Encoding(<>)", [*ENCODINGS, "", "1", "b'text/plain'", "s='a/b'"]),
    *of_each("hash(Encoding(<>)) == hash(str(Encoding(<>)))", ENCODINGS),
    *of_each("Encoding.TEXT_PLAIN.with_schema(<>)", ["'b'", "'é'", "1"]),
    *of_each("Encoding('foo/bar;x').with_schema(<>)", ["'b'", "''", "'a;b'"]),
    *of_each(
        "Encoding('text/plain') == <>", ["'text/plain'", "'text/plain;'", "1", "b'text/plain'"]
    ),
    *of_each("Encoding('text/plain') == Encoding(<>)", ["'text/plain'", "'text/plain;a'"]),
    *["Encoding('zenoh/bytes') == ''", "Encoding('text/plain') == None"],
    "sorted(name for name in dir(Encoding) if name.isupper())",
    "[str(getattr(Encoding, name)) for name in sorted(dir(Encoding)) if name.isupper()]",
]

PARAMETERS = [
    *["None", "''", "'a=1;b=2'", "'?a=1'", "'a'", "'a=1;a=2'", "'a=1|2|3'", "'a=1;;b'", "';a=1'"],
    *["'a=1&b=2'", "'=x'", "'a=b=c'", "'b=1;a=2'", "{'a': '1'}", "{'a': ''}", "{'': 'x'}", "{}"],
    *["'a=|'", "';;'", "'a=;'", "{'a;b': 'c'}", "obj='a=1'"],
]
PARAMETER_LINES = [
    *of_each("str(Parameters(<>))", [*PARAMETERS, "", "{'a': 1}", "{1: 'a'}", "b'a=1'", "1"]),
    *of_each("list(Parameters(<>))", PARAMETERS),
    *of_each("Parameters(<>).is_empty()", PARAMETERS),
    *of_each("Parameters(<>).is_ordered()", PARAMETERS),
    *of_each("bool(Parameters(<>))", PARAMETERS),
    *of_each("Parameters('a=1;b=2|3;c').get(<>)", ["'a'", "'z'", "'z', 'd'", "'c'", "'a', 5", "1"]),
    *of_each("Parameters('a=1;a=2;c')[<>]", ["'a'", "'z'", "'c'", "1"]),
    *of_each("Parameters('a=1;b=2|3;c').values(<>)", ["'a'", "'b'", "'z'", "'c'", "1"]),
    *of_each("<> in Parameters('a=1;=x')", ["'a'", "'z'", "''", "1"]),
    *of_each(
        "(lambda p: [<>, str(p)])(Parameters('a=1;b=2|3;c;a=4'))",
        [
            *["p.insert('a', '9')", "p.insert('n', '9')", "p.insert('n', '')", "p.insert('', '')"],
            *["p.insert('b', 'x;y')", "p.insert(1, 2)", "p.insert('a', 1)", "p.insert(key='a')"],
            *["p.remove('a')", "p.remove('zz')", "p.remove(1)", "p.extend('b=7;q=1')"],
            *["p.extend({'k': 'v'})", "p.extend(Parameters('b;b=2'))", "p.extend(None)"],
            *["p.extend(1)", "p.extend('')"],
        ],
    ),
    *["repr(Parameters('a=1;b'))", "Parameters('a=1') == 'a=1'", "len(Parameters('a'))"],
]

SELECTORS = [
    *["'a/b'", "'a/b?x=1'", "'a/b?x=1;y'", "'a/b', 'x=1'", "'a/b', {'x': '1'}", "'a/b?z=1', 'x=1'"],
    *["KeyExpr('a')", "KeyExpr('a'), '?x=1'", "'a/b?'", "'?x'", "1", "'a//b'", "'a?b?c'"],
    *["'a', None", "'a?x', None", "arg='a'", "'a', parameters={'x': '1'}", "'a', 1", "'a', ''"],
    *["KeyExpr('a'), Parameters('x')", "'a?', ''", "'a?x=1', ''", "'a=b?c#d'", ""],
]
SELECTOR_LINES = [
    *of_each("str(Selector(<>))", SELECTORS),
    *of_each("repr(Selector(<>))", SELECTORS),
    *of_each("str(Selector(<>).parameters)", SELECTORS),
    *of_each("Selector(<>).key_expr", SELECTORS),
    "setattr(Selector('a'), 'key_expr', 'b')",
    "(lambda s: [s.parameters.insert('x', '1'), str(s)])(Selector('a'))",
]

TIMES = [
    *["2024-07-01T13:51:12.129693000Z", "2024-07-01T13:51:12Z", "2024-07-01T13:51:12.5Z"],
    *["2024-07-01T13:51:12.1234567891Z", "2024-07-01T13:51:60Z", "2024-07-01T13:51:12.Z"],
    *["1960-07-01T13:51:12Z", "2024-07-01T13:51Z", "2024-07-01", "2024-02-30T13:51:12Z", "xx", ""],
    *["2024-07-01T13:51:12", "2024-07-01T13:51:12z", "2024-07-01 13:51:12Z"],
    *["2024-07-01T13:51:61Z", "2024-07-01T24:00:00Z", "1970-01-01T00:00:00Z"],
    "2106-02-07T06:28:15.999999999Z",
]
NTP64S = [
    *["0, 0", "0, 1", "1, 2", "0, 999999999", "1, 2000000000", "1719841872, 129693000"],
    *["0, 2**32 - 1", "2**32 - 1, 999999999", "1, 1999"],
]
TIME_LINES = [
    *of_each("str(NTP64(<>))", [*NTP64S, "-1, 0", "0, -1", "2**64, 0", "0, 2**32", "1.5, 0", "1"]),
    *of_each("NTP64(<>).as_secs()", NTP64S),
    *of_each("NTP64(<>).as_nanos()", NTP64S),
    *of_each("NTP64(<>).as_secs_f64()", NTP64S),
    *of_each("NTP64(<>).subsec_nanos()", NTP64S),
    *of_each("NTP64(<>).to_datetime()", NTP64S),
    *of_each("NTP64(<>).to_string_rfc3339_lossy()", NTP64S),
    *of_each("NTP64.parse_rfc3339(<>)", [*map(repr, TIMES), "1"]),
    *of_each("str(NTP64(seconds=1, <>=2))", ["nanos", "nanoseconds"]),
    *of_each(
        "NTP64(1, 2) <>", ["== NTP64(1, 2)", ">= NTP64(1, 1)", "< NTP64(1, 2)", "== 1", "< 1"]
    ),
    *["repr(NTP64(1, 2))", "hash(NTP64(1, 2)) == hash(NTP64(1, 2))"],
]
TIMESTAMP_LINES = [
    *of_each(
        "TimestampId(<>)",
        [
            *["b'3'", "bytearray(b'3')", "memoryview(b'3')", "'3'", "3", "[300]", "(1, 2)", "b''"],
            *["bytes(17)", "bytes(2)", "b'a' * 17", "b'a' + bytes(16)", "bytes(15) + b'a'", ""],
            *["[1, 2]", "b'\\x01\\x02\\x00'", "bytes=b'1'", "bytes(range(1, 17))", "[]", "None"],
        ],
    ),
    *[
        "bytes(TimestampId(b'\\x01\\x02\\x00'))",
        "repr(TimestampId(b'3'))",
        "str(TimestampId(b'3'))",
    ],
    *of_each("TimestampId(b'3') <>", ["== b'3'", "== TimestampId([0x33, 0])", "== 1", "< b'3'"]),
    *["TimestampId(b'\\x01\\x02') < TimestampId(b'\\x02\\x01')", "hash(TimestampId(b'3'))"],
    *["TimestampId(b'\\x01') < TimestampId(b'\\x01\\x00\\x01')"],
    *of_each("Timestamp.parse_rfc3339(<>)", [repr(f"{time}/33") for time in TIMES]),
    *of_each(
        "Timestamp.parse_rfc3339('2024-07-01T13:51:12Z<>')",
        ["", "/", "/0", "/GG", "/01", "/AB", "/3/3", "/123", "/" + "a" * 32, "/" + "a" * 33],
    ),
    "Timestamp.parse_rfc3339('7386690599959157260/33')",
    *of_each(
        "Timestamp(<>)",
        [
            *["NTP64(1, 0), b'a'", "NTP64(1, 0), '33'", "NTP64(1, 0), 3", "NTP64(1, 0), [3]"],
            *["NTP64(1, 0), b''", "time=NTP64(1, 0), id=TimestampId(b'a')", "1, b'a'", ""],
            *["datetime.datetime(2024, 7, 1, 13, 51, 12, 129693, tzinfo=U), b'a'"],
            *["datetime.datetime(2024, 7, 1, 13, 51, 12), b'a'"],
            *["datetime.datetime(1960, 1, 1, tzinfo=U), b'a'", "None, b'a'"],
        ],
    ),
    *of_each(
        "Timestamp(NTP64(1719841872, 129693999), b'3').<>",
        [
            *["get_time()", "get_time_as_ntp64()", "get_id()", "to_string_rfc3339_lossy()"],
            *["get_diff_duration(Timestamp(NTP64(1719841870, 0), b'3'))", "get_diff_duration(1)"],
            *["get_diff_duration(Timestamp(NTP64(0, 0), b'4'))"],
        ],
    ),
    *of_each(
        "Timestamp(NTP64(1, 2), b'3') <> Timestamp(NTP64(1, 2), b'3')",
        ["==", "!=", "<", "<=", ">", ">="],
    ),
    *of_each("Timestamp(NTP64(1, 2), b'3') <> Timestamp(NTP64(1, 2), b'4')", ["==", "<", ">"]),
    *of_each("Timestamp(NTP64(1, 2), b'3') <> 1", ["==", "<"]),
    "repr(Timestamp(NTP64(1, 2), b'3'))",
]

BUILDER = "TimestampInstrumentationBuilder()"
OTHER_LINES = [
    f"{BUILDER}.build()",
    f"{BUILDER}.set_send(1)",
    f"{BUILDER}.set_send(True).set_send(False).build()",
    f"{BUILDER}.set_send(True).build().is_instrumented(1)",
    *[
        f"{BUILDER}.set_{name}(True).build().is_instrumented(InterceptionPoint.{point})"
        for name in ("send", "route", "receive")
        for point in ("SEND", "ROUTE", "RECEIVE")
    ],
    *["SourceInfo(1, 2)", "SourceInfo()"],
    *of_each(
        "<>()",
        [
            *["ZenohId", "EntityGlobalId", "TimestampInstrumentation", "TimestampStack"],
            *["TimestampStackRecord", "TimestampContext"],
        ],
    ),
]

LINES = [
    *[*ENUM_LINES, *KEY_LINES, *BYTES_LINES, *ENCODING_LINES, *PARAMETER_LINES],
    *[*SELECTOR_LINES, *TIME_LINES, *TIMESTAMP_LINES, *OTHER_LINES],
]


@pytest.mark.parametrize("line", LINES)
def test_answers_as_the_reference_does(line: str) -> None:
    assert answer(line, OURS) == answer(line, THEIRS)


DIFFERENT = {
    # the reference panics, or gives what cannot be meant
    "KeyExpr.autocanonize('a/b$*$*c')": ("KeyExpr", "a/b$*c"),
    "NTP64(2**32, 0)": "OverflowError",
    "NTP64(2**32 - 1, 10**9)": "OverflowError",
    "NTP64.parse_rfc3339('2200-07-01T13:51:12Z')": "ZError",
    "Timestamp(datetime.datetime(2200, 1, 1, tzinfo=U), b'3')": "OverflowError",
    "Timestamp(NTP64(1, 0), b'3').get_diff_duration(Timestamp(NTP64(2, 0), b'3'))": (
        datetime.timedelta(seconds=-1)
    ),
    "Encoding('zenoh/bytes') == None": False,
    "Encoding('text/plain').with_schema('')": ("Encoding", "text/plain"),
    "KeyExpr('a/b') / '/c'": "ZError",
    "KeyExpr('a/b') / ''": "ZError",
    "Encoding('a' * 256)": "ZError",
    # more is accepted
    "KeyExpr(KeyExpr('a'))": ("KeyExpr", "a"),
    "KeyExpr('a').join(KeyExpr('b'))": ("KeyExpr", "a/b"),
    "Parameters(Parameters('a=1'))": ("Parameters", "a=1"),
    "ZBytes(ZBytes(b'q')).to_bytes()": b"q",
    "ZBytes(memoryview(b'x')).to_bytes()": b"x",
    "ZBytes(b'x') == memoryview(b'x')": True,
    "NTP64.parse_rfc3339('2024-07-01T13:51:12+02:00').to_datetime().hour": 11,
    "WhatAmI(2)": ("WhatAmI", "peer"),
    "Priority(5)": ("Priority", "Priority.DATA"),
    # values are values
    "Priority.DATA is Priority.DEFAULT": True,
    "Parameters('a=1') == Parameters('a=1')": True,
    "Selector('a?b') == Selector('a', 'b')": True,
    "WhatAmIMatcher('peer') == WhatAmIMatcher('peer')": True,
    "Priority.DATA < Priority.DATA_LOW": True,
    "SetIntersectionLevel.EQUALS >= SetIntersectionLevel.INCLUDES": True,
    "KeyExpr('a') < KeyExpr('b')": True,
}


def panics_or_differs(line: str, ours: Any) -> bool:
    try:
        return bool(answer(line, THEIRS) != ours)
    except BaseException as error:  # noqa: BLE001  # a panic is no Exception
        return type(error).__name__ == "PanicException"


@pytest.mark.parametrize(("line", "ours"), DIFFERENT.items())
def test_differs_from_the_reference_on_purpose(line: str, ours: Any) -> None:
    assert answer(line, OURS) == ours
    assert panics_or_differs(line, ours)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_of_the_reference_is_there(name: str) -> None:
    missing = {
        attribute
        for attribute in dir(THEIRS[name])
        if not attribute.startswith("_") and not hasattr(OURS[name], attribute)
    }
    assert not missing


def parameters_of(owner: Any, name: str) -> list[tuple[str, Any, Any]] | None:
    """Names, kinds and defaults; None for what cannot be called or does not tell."""
    try:
        signature = inspect.signature(getattr(owner, name) if name else owner)
    except (TypeError, ValueError):
        return None
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]


@pytest.mark.parametrize("name", ["KeyExpr", *NAMES])
def test_every_signature_is_that_of_the_reference(name: str) -> None:
    ours, theirs = OURS[name], THEIRS[name]
    methods = [method for method in dir(theirs) if not method.startswith("_")]
    for method in methods:
        if callable(getattr(theirs, method)) and parameters_of(theirs, method) is not None:
            assert parameters_of(ours, method) == parameters_of(theirs, method), method
    if not hasattr(ours, "__members__") and parameters_of(theirs, "") is not None:
        assert parameters_of(ours, "") == parameters_of(theirs, "")


@pytest.mark.parametrize("name", [name for name in NAMES if hasattr(OURS[name], "__members__")])
def test_every_member_has_the_number_of_the_reference(name: str) -> None:
    for member, ours in OURS[name].__members__.items():
        theirs = getattr(THEIRS[name], member)
        assert (int(ours), str(ours), repr(ours)) == (int(theirs), str(theirs), repr(theirs))
