"""The options of every source and sink: one table, and the texts that users give, checked.

Knows names, forms and what belongs to what. Opens nothing; imports neither Spark nor Arrow. What
may be a secret is never part of a repr or an error.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import Enum
from pathlib import PurePath
from typing import Any, NamedTuple

from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr
from zenlake.wire.locator import EndPoint

MAX_SHOWN = 60  # characters of a refused value
MAX_SECONDS = 1e9
CONFIG_ENDINGS = (".json", ".json5", ".yaml", ".yml", ".toml")
OF_SPARK = frozenset({"checkpointlocation"})  # what Spark itself adds


class Purpose(Enum):
    """What is done with the options; the value is how errors and tables name it."""

    LOG_STREAM = "log-stream"
    LOG_BATCH = "log-batch"
    LIVE = "live"
    WRITE = "write"
    CAPTURE = "capture"


class Limits(NamedTuple):
    """How old, how large; None: as old or as large as it gets."""

    seconds: float | None = None
    bytes: int | None = None


class Kind(NamedTuple):
    """How a value is written, in words, and how it is read. ValueError: it is something else."""

    what: str
    read: Callable[[str], Any]


# ---- how values are read

_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d{1,18})\s*([bkmgt]?)", re.IGNORECASE)
_TIME = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*(us|ms|s|min|h|d)?", re.IGNORECASE)
_BOOLEANS = {"true": True, "false": False}


def _boolean(text: str) -> bool:
    try:
        return _BOOLEANS[text.strip().lower()]
    except KeyError:
        raise ValueError from None


def _count(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text) if text.strip().isdecimal() else -1
        if not least <= number < 1 << 63:
            raise ValueError
        return number

    return read


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    size = int(found[1]) * _SIZES[found[2].lower()] if found else 0
    if not 0 < size < 1 << 63:
        raise ValueError
    return size


def _seconds(text: str) -> float:
    found = _TIME.fullmatch(text.strip())
    if not found:
        raise ValueError
    seconds = float(found[1]) * _TIMES[(found[2] or "s").lower()]
    if seconds > MAX_SECONDS:
        raise ValueError
    return seconds


def _limits(text: str) -> Limits:
    """`7d`, `100g`, or both with a comma: a number with a unit of time is one of time."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        match = _TIME.fullmatch(part.strip())
        name = "seconds" if match and match[2] else "bytes"
        if name in found:
            raise ValueError
        found[name] = _seconds(part) if name == "seconds" else _size(part)
    return Limits(**found)


def _only_size(text: str) -> Limits:
    return Limits(bytes=_size(text))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError
    return names


def _paths(text: str) -> tuple[str, ...]:
    """What Spark makes of load([...]) is a JSON list."""
    found = json.loads(text) if text.startswith("[") else [text]
    if not found or not all(isinstance(one, str) and one for one in found):
        raise ValueError
    return tuple(found)


def _some_text(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text


def _key_expr(text: str) -> str:
    return str(KeyExpr.autocanonize(text))


def _selector(text: str) -> str:
    key, mark, parameters = text.partition("?")
    return f"{_key_expr(key)}{mark}{parameters}"


def _endpoints(text: str) -> tuple[str, ...]:
    found = json.loads(text) if text.startswith("[") else text.split(",")
    if not found or not all(isinstance(one, str) for one in found):
        raise ValueError
    return tuple(str(EndPoint(one.strip())) for one in found)


def _ports(text: str) -> tuple[int, ...]:
    ports = tuple(map(_count(1), text.split(",")))
    if max(ports) > 0xFFFF:
        raise ValueError
    return ports


def _offsets(*words: str) -> Callable[[str], str | int | dict[int, int]]:
    def read(text: str) -> str | int | dict[int, int]:
        """A word, offsets, or an instant."""
        if text.strip().lower() in words:
            return text.strip().lower()
        if not text.strip().startswith("{"):
            return _instant(text)
        found = json.loads(text)
        if not isinstance(found, dict) or not found:
            raise ValueError
        for number, offset in found.items():
            if not number.isdecimal() or type(offset) is not int or offset < 0:
                raise ValueError
        return {int(number): offset for number, offset in sorted(found.items())}

    return read


def _instant(text: str) -> int:
    """Microseconds since the epoch."""
    if re.fullmatch(r"\d{1,15}", text.strip()):
        return int(text) * 1000
    moment = datetime.fromisoformat(text.strip())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds


def _one_of(*words: str) -> Kind:
    def read(text: str) -> str:
        word = text.strip().lower().replace("-", "_")
        if word not in words:
            raise ValueError
        return word

    return Kind(f"one of {', '.join(words)}", read)


PRIORITIES = {
    "real_time": 1,
    "interactive_high": 2,
    "interactive_low": 3,
    "data_high": 4,
    "data": 5,
    "data_low": 6,
    "background": 7,
}


def _priority(text: str) -> int:
    word = text.strip().lower().replace("-", "_")
    number = int(word) if word.isdecimal() else PRIORITIES.get(word, 0)
    if number not in PRIORITIES.values():
        raise ValueError
    return number


def _config(text: str) -> str:
    """Only its form: what it says is checked where it is used."""
    if not text.strip().startswith("{") and PurePath(text.strip()).suffix not in CONFIG_ENDINGS:
        raise ValueError
    return text.strip()


BOOLEAN = Kind("true or false", _boolean)
COUNT = Kind("a whole number from 1 on", _count(1))
NUMBER = Kind("a whole number from 0 on", _count(0))
SIZE = Kind("a number of bytes, such as 64m", _size)
SECONDS = Kind("seconds, or a time such as 500ms or 5min", _seconds)
LIMITS = Kind("an age such as 7d, a size such as 100g, or both with a comma", _limits)
SIZE_LIMIT = Kind("a size such as 256m", _only_size)
NAMES = Kind("names with commas between them", _names)
TEXT = Kind("a text that is not empty", _some_text)
PATHS = Kind("a path, or a JSON list of paths", _paths)
KEY_EXPR = Kind("a key expression, such as robot/*/battery", _key_expr)
SELECTOR = Kind("a selector, such as robot/**?_time=[now(-1h)..]", _selector)
ENDPOINTS = Kind("endpoints with commas between them, such as tcp/127.0.0.1:7447", _endpoints)
PORTS = Kind("port numbers with commas between them", _ports)
_WHERE = 'or JSON such as {"0": 1200}, or a time such as 2026-08-22T10:00:00Z'
START = Kind(f"earliest, latest, {_WHERE}", _offsets("earliest", "latest"))
END = Kind(f"latest, {_WHERE}", _offsets("latest"))
INSTANT = Kind("milliseconds since 1970, or ISO 8601 such as 2026-08-22T10:00:00Z", _instant)
INCLUDE_LOSS = _one_of("false", "true", "only")
DUPLICATES = _one_of("keep", "drop", "mark")
MODE = _one_of("client", "peer")
CODEC = _one_of("none", "lz4", "zstd")
TARGET = _one_of("best_matching", "all", "all_complete")
CONSOLIDATION = _one_of("auto", "none", "monotonic", "latest")
CONGESTION_CONTROL = _one_of("block", "drop", "block_first")
PRIORITY = Kind(f"1 to 7, or one of {', '.join(PRIORITIES)}", _priority)
CONFIG = Kind("JSON5 in braces, or the path of a .json5, .yaml or .toml file", _config)


# ---- the table


class Option(NamedTuple):
    name: str
    kind: Kind
    default: Any
    purposes: frozenset[Purpose]
    help: str

    @property
    def is_secret(self) -> bool:
        """Whether what it holds must not be seen: all, or of an endpoint what follows '#'."""
        return self.kind in (CONFIG, ENDPOINTS)


_STREAM = frozenset({Purpose.LOG_STREAM})
_BATCH = frozenset({Purpose.LOG_BATCH})
_LOG = _STREAM | _BATCH
_LIVE = frozenset({Purpose.LIVE})
_WRITE = frozenset({Purpose.WRITE})
_CAPTURE = frozenset({Purpose.CAPTURE})
_NET = _STREAM | _LIVE | _WRITE
_READS = _LOG | _LIVE | _CAPTURE

OPTIONS = (
    Option("path", TEXT, None, _LOG, "the folder of the log"),
    Option("path", PATHS, None, _CAPTURE, "capture files; globs, and several, are welcome"),
    Option("paths", PATHS, None, _CAPTURE, "the same, as Spark writes it for load([...])"),
    Option("columns", NAMES, None, _READS, "only these columns, in this order"),
    Option("keyExpr", KEY_EXPR, None, _LOG, "only samples whose key this matches"),
    Option("startingOffsets", START, "earliest", _LOG, "where a new query starts"),
    Option("endingOffsets", END, "latest", _BATCH, "where a batch ends, not included"),
    Option("startingTimestamp", INSTANT, None, _LOG, "from the first sample received then"),
    Option("endingTimestamp", INSTANT, None, _BATCH, "up to the first sample received then"),
    Option("maxRowsPerTrigger", COUNT, None, _STREAM, "rows of one micro-batch"),
    Option("maxBytesPerTrigger", SIZE, None, _STREAM, "bytes of the log in one micro-batch"),
    Option("minPartitions", COUNT, None, _LOG, "at least as many tasks, if there are rows"),
    Option("failOnDataLoss", BOOLEAN, True, _LOG, "fail when rows asked for are gone"),
    Option("includeLoss", INCLUDE_LOSS, "false", _LOG, "a column `loss`, a row for each gap"),
    Option("duplicates", DUPLICATES, "keep", _LOG, "what to do with samples that came before"),
    Option("duplicatesWithin", SECONDS, 600.0, _LOG, "how long a sample is recognised"),
    Option("startName", TEXT, None, _STREAM, "tells queries with equal options apart"),
    Option("recorderPartition", NUMBER, 0, _STREAM, "the partition that the recorder writes"),
    Option("key", KEY_EXPR, "**", _STREAM, "what the recorder subscribes to"),
    Option("codec", CODEC, None, _STREAM, "how the recorder compresses"),
    Option("retain", LIMITS, None, _STREAM, "how much the recorder keeps"),
    Option("rotate", SIZE_LIMIT, None, _STREAM, "when the recorder starts a new segment"),
    Option("sync", SECONDS, None, _STREAM, "how long samples may wait until they are durable"),
    Option("selector", SELECTOR, None, _LIVE, "what is asked"),
    Option("timeout", SECONDS, 10.0, _LIVE, "how long replies may take"),
    Option("timeout", SECONDS, 60.0, _WRITE, "how long the last rows of a task may take"),
    Option("target", TARGET, "best_matching", _LIVE, "which queryables are asked"),
    Option("consolidation", CONSOLIDATION, "auto", _LIVE, "which replies of one key are kept"),
    Option("connect", ENDPOINTS, None, _NET, "endpoints of the system; the first that answers"),
    Option("mode", MODE, "client", _NET, "what the session is"),
    Option("config", CONFIG, None, _NET, "a Zenoh configuration; may hold passwords"),
    Option("key", KEY_EXPR, None, _WRITE, "the key of every row, if there is no column `key`"),
    Option("encoding", TEXT, None, _WRITE, "if there is no column `encoding`"),
    Option("priority", PRIORITY, 5, _WRITE, "if there is no column `priority`"),
    Option("congestionControl", CONGESTION_CONTROL, "block", _WRITE, "if there is no such column"),
    Option("reliable", BOOLEAN, True, _WRITE, "if there is no column `reliable`"),
    Option("express", BOOLEAN, False, _WRITE, "if there is no column `express`"),
    Option("ports", PORTS, (7447, 7446), _CAPTURE, "where Zenoh is looked for"),
)


def table(purpose: Purpose) -> dict[str, Option]:
    """The options of one purpose, by their names in lower case, as Spark hands them over."""
    return {one.name.lower(): one for one in OPTIONS if purpose in one.purposes}


_NAMES = {one.name.lower(): one.name for one in OPTIONS}


# ---- parsing


@dataclass(frozen=True, repr=False)
class Options:
    """The checked values of one purpose, by the names of the table; defaults included.

    >>> options = Options.parse({"selector": "a/**", "connect": "tcp/[::1]:7447"}, Purpose.LIVE)
    >>> options["timeout"], options["connect"]
    (10.0, ('tcp/[::1]:7447',))
    >>> Options.parse({"selektor": "a/**"}, Purpose.LIVE)
    Traceback (most recent call last):
    zenlake.errors.ZError: there is no option 'selektor'; did you mean 'selector'?
    """

    purpose: Purpose
    values: Mapping[str, Any]
    given: frozenset[str]
    "Names of those that the user gave."

    @classmethod
    def parse(cls, raw: Mapping[str, str], purpose: Purpose) -> "Options":
        """ZError: names the option, and what to write instead."""
        known = table(purpose)
        values: dict[str, Any] = {one.name: one.default for one in known.values()}
        given = set()
        for name, text in sorted(_ours(raw)):
            option = known.get(name)
            if option is None:
                raise _not_of(name, (purpose,))
            values[option.name] = _read(option, text)
            given.add(option.name)
        for edge in ("starting", "ending"):  # a time among the offsets is a time
            if type(values.get(f"{edge}Offsets")) is int:
                values[f"{edge}Timestamp"] = values[f"{edge}Offsets"]
                values[f"{edge}Offsets"] = known[f"{edge}offsets"].default
        return cls(purpose, values, frozenset(given))

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def require(self, *names: str) -> None:
        """At least one of `names` was given. ZError: none was."""
        if not any(self.values[name] is not None for name in names):
            options = {one.name: one for one in table(self.purpose).values()}
            first = options[names[0]]
            others = "".join(f" (or {name!r})" for name in names[1:])
            raise ZError(
                f"option {first.name!r}{others} is missing: {first.help}; {first.kind.what}"
            )

    def __repr__(self) -> str:
        known = table(self.purpose)
        shown = (f"{name}={_shown(known[name.lower()], self[name])}" for name in sorted(self.given))
        return f"Options({', '.join([self.purpose.value, *shown])})"


def check(raw: Mapping[str, str], purposes: Iterable[Purpose]) -> None:
    """Every name and value, where it is not known yet which of `purposes` it will be."""
    tables = [table(purpose) for purpose in purposes]
    for name, text in sorted(_ours(raw)):
        found = [known[name] for known in tables if name in known]
        if not found:
            raise _not_of(name, purposes)
        error: ZError | None = None
        for option in found:
            try:
                _read(option, text)
                break
            except ZError as refused:
                error = refused
        else:
            assert error is not None
            raise error


def _ours(raw: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name.lower(), raw[name]) for name in raw if name.lower() not in OF_SPARK]


def _read(option: Option, text: str) -> Any:
    try:
        return option.kind.read(text)
    except (ValueError, OverflowError):  # keys and endpoints that are none are ValueErrors too
        pass
    # Outside of the except: the cause may quote what must not be shown.
    got = "what it holds" if option.is_secret else repr(text[:MAX_SHOWN])
    raise ZError(f"option {option.name!r}: {got} is not {option.kind.what}")


def _not_of(name: str, purposes: Iterable[Purpose]) -> ZError:
    allowed = {n: one.name for purpose in purposes for n, one in table(purpose).items()}
    here = " or ".join(purpose.value for purpose in purposes)
    if name in _NAMES:
        theirs = {p.value for one in OPTIONS if one.name.lower() == name for p in one.purposes}
        return ZError(
            f"option {_NAMES[name]!r} is of {', '.join(sorted(theirs))}, not of {here}: leave it "
            f"out. There are {', '.join(sorted(allowed.values()))}"
        )
    near = get_close_matches(name, allowed, 1)
    hint = (
        f"; did you mean {allowed[near[0]]!r}?"
        if near
        else f": there are {', '.join(sorted(allowed.values()))}"
    )
    return ZError(f"there is no option {name!r}{hint}")


def _shown(option: Option, value: Any) -> str:
    if option.kind is CONFIG:
        return "***"
    if option.kind is ENDPOINTS:
        return repr(tuple(one.partition("#")[0] for one in value))
    return repr(value)
