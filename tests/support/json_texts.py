"""Texts for parsers of JSON: chosen ones, generated values, and texts with characters changed."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

NAMES = ["a", "", "b", "aa", "é", "\uffff", "\U0001f600", "x" * 70, 'q"uote', "\n"]
"Names of objects; sorted by UTF-16 units they stand in another order than by code points."

_DIGITS = "1234567890"
_NESTED = [999, 1000, 1001]

TEXTS = [
    *("", " ", "null", "true", "false", "nul", "True", "-", "+1", ".5", "5.", "01", "-0", "00"),
    *("0", "1", "-1", "127", "128", "-128", "-129", "32767", "32768", "2147483648"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *("-9223372036854775809", "1" * 38, "1" * 39, "9" * 19, "-" + "9" * 38),
    *("1" * 999, "1" * 1000, "1" * 1001, "-" + "1" * 1000, "1." + "1" * 999, "1." + "1" * 1000),
    *("1e" + "0" * 998 + "1", "1e" + "0" * 999 + "1", "1e-" + "0" * 997 + "1", "1" * 998 + "e+1"),
    *("1" * 999 + "e1", "1" * 1000 + "e1"),
    *("0." + "1" * 38, "0." + "0" * 37 + "1", "0." + "0" * 38 + "1", "0." + "1" * 39),
    *("1.0", "-0.0", "0.10", "0.000000001", "0.0000000001", "123456789.1", "1234567890.1"),
    *("123456789.123456789", "1234567890.1234567890", "0.1234567890123456789", "-0.00"),
    *("0." + "0" * 30, "-0." + "0" * 30, "100000000000000000000", "12345678901234567890.5"),
    *("1e3", "1E+3", "1e", "1e+", "1e400", "-1e400", "1e-400", "-1e-400", "0e0", "-0e0", "1.5e3"),
    *("1.e5", "1.7976931348623157e308", "4.9e-324", "2.5e-324", "9007199254740993e22"),
    *("123456789012345e22", "1234567890123456e22", "1e22", "1e23", "1e-22", "1e-23", "8.5e-5"),
    *("--1", "1-1", "1.1.1", "1x", "1 x", "1,2", "1 2", "1\t", "1\u00a0", "1]", "1}"),
    *('"a"', '"a', '"\\u0041"', '"\\n\\t\\"\\/\\\\\\b\\f\\r"', '"\\x"', '"\\u12"', '"\\'),
    *(
        '"\\ud83d\\ude00"',
        '"\\ud83d"',
        '"\\ude00"',
        '"\\ud83dx"',
        '"\\ud83d\\n"',
        '"\\ud83d\\u0041"',
    ),
    *('"\\uD83D\\uDE00"', '"\\uFFFF"', '"\\u0000"', '"\\u007f\\u0080\\u07ff\\u0800"'),
    *('"a\tb"', '"a\x00b"', '"a\x7fb"', '"\x1f"', '"' + "x" * 63 + '"', '"' + "x" * 64 + '"'),
    *('"' + "\\u00e9" * 31 + '"', '"' + "\\u00e9" * 32 + '"', '"\U0001f600"', '"a"b', '"a" "b"'),
    *("{}", "[]", "[ ]", "{ }", '{"a":1}', '{"a":1,}', "[1,]", "[,1]", '{"a"}', '{"a":}', "{a:1}"),
    *("{'a':1}", '{"a":1,"a":2}', '{"b":1,"a":2}', '{"a":{"b":1},"b":{"a":2}}', '{"":1}'),
    *(
        '{"a":1 "b":2}',
        "[1 2]",
        "{} x",
        "[1]]",
        '{"a":1}}',
        "[}",
        "{]",
        "[1",
        '{"a":1',
        '{"a"',
        "{,}",
    ),
    *(
        "nullx",
        "null x",
        "null]",
        "truefalse",
        "[nullx]",
        "[truefalse]",
        "\ufeff1",
        "/*c*/1",
        "1//",
    ),
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "[NaN]",
        "\x0b1",
        "[1\x0c]",
        " 1 ",
        '\n{ "a" : [ 1 , 2 ] }\t',
    ),
    *('{"\\u0061":1,"a":2}', '{"\U0001f600":1,"\uffff":2}', '{"\\ud83d":1,"?":2}'),
    *('{"a":1,"b":[{"c":"d"}]}', '[[1,2,[3,{"x":null}]]]', '{"a":[],"b":{},"c":[[]]}'),
    *("[" * depth + "]" * depth for depth in _NESTED),
    *('{"a":' * depth + "1" + "}" * depth for depth in _NESTED),
    json.dumps(list(range(300))),
    json.dumps([[]] * 256),
    json.dumps(["x" * 300] * 300),
    json.dumps({str(n): n for n in range(300)}),
    json.dumps({str(n): n for n in range(300, 0, -1)}),
    json.dumps([{"k": "v", "n": n} for n in range(5000)]),
    json.dumps(["x" * 70_000]),
    json.dumps({"k" * 50_000: 1}),
    json.dumps({"k" * 50_001: 1}),
    json.dumps(dict.fromkeys(NAMES, 1)),
    json.dumps(dict.fromkeys(NAMES, 1), ensure_ascii=False),
]


def random_value(random: Random, depth: int = 4) -> Any:
    """Return a value of JSON, nested up to `depth`."""
    kind = random.randrange(9 if depth else 6)
    match kind:
        case 0:
            return random.choice([None, True, False])
        case 1:
            return random.randrange(-(1 << random.choice([7, 15, 31, 63, 120])), 1 << 90)
        case 2:
            return random.uniform(-1, 1) * 10 ** random.randrange(-30, 30)
        case 3 | 4:
            return "".join(random.choices('ab"\\\né\u2028\U0001f600 ', k=random.randrange(80)))
        case 5:
            return round(random.uniform(-1000, 1000), random.randrange(6))
        case 6:
            return [random_value(random, depth - 1) for _ in range(random.randrange(6))]
        case _:
            names = [*NAMES, *"zyxwvutsrqponmlk"]
            random.shuffle(names)
            return {name: random_value(random, depth - 1) for name in names[: random.randrange(18)]}


def random_texts(random: Random, count: int) -> Iterator[str]:
    """Yield values as JSON, written in various ways."""
    for _ in range(count):
        yield json.dumps(
            random_value(random),
            ensure_ascii=random.random() < 0.5,
            indent=random.choice([None, None, 1]),
        )


def mutations(random: Random, count: int) -> Iterator[str]:
    """Yield short valid texts with one or two characters replaced, inserted or removed."""
    for text in random_texts(random, count):
        characters = list(text[:200])
        for _ in range(random.randrange(3)):
            at = random.randrange(len(characters) + 1)
            new = random.choice('{}[]",:0123456789.eE+-\\ntfu \t\x00')
            characters[at : at + random.randrange(2)] = [new] * random.randrange(2)
        yield "".join(characters)
