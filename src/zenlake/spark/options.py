"""The options of every Spark source and sink: one table, and the checks of their values.

Knows names, kinds of values and purposes. Opens nothing; imports neither Spark nor Arrow. A value
that may be a secret is never part of a repr or an error.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any, NamedTuple

from zenlake import checked, quantities
from zenlake.checked import TEXT, Kind
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr
from zenlake.wire.enums import WirePriority
from zenlake.wire.locator import EndPoint

MAX_BATCH_ENDS = 64  # Upper bound on the entries of the option `batchEnds`.
CONFIG_ENDINGS = (".json", ".json5", ".yaml", ".yml", ".toml")
OF_SPARK = frozenset({"checkpointlocation"})  # Options that Spark itself adds.


class Purpose(Enum):
    """The source or sink that options are for; errors and tables print the value."""

    LOG_STREAM = "log-stream"
    LOG_BATCH = "log-batch"
    LIVE = "live"
    WRITE = "write"
    CAPTURE = "capture"


# ---- readers of values; ValueError: the value is not of this kind

_BOOLEANS = {"true": True, "false": False}


def _boolean(text: str) -> bool:
    try:
        return _BOOLEANS[text.strip().lower()]
    except KeyError:
        raise ValueError from None


def _count(least: int) -> Callable[[str], int]:
    check = checked.whole(least)
    return lambda text: check(int(text) if text.strip().isdecimal() else None)


def _seconds(text: str) -> float:
    return quantities.seconds(text, bare=True)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError
    return names


def _paths(text: str) -> tuple[str, ...]:
    """Read one path, or the JSON list that Spark makes of load([...])."""
    found = json.loads(text) if text.startswith("[") else [text]
    if not found or not all(isinstance(path, str) and path for path in found):
        raise ValueError
    return tuple(found)


def _key_expr(text: str) -> str:
    return str(KeyExpr.autocanonize(text))


def _selector(text: str) -> str:
    key, mark, parameters = text.partition("?")
    return f"{_key_expr(key)}{mark}{parameters}"


def _endpoints(text: str) -> tuple[str, ...]:
    found = json.loads(text) if text.startswith("[") else text.split(",")
    if not found or not all(isinstance(endpoint, str) for endpoint in found):
        raise ValueError
    return tuple(str(EndPoint(endpoint.strip())) for endpoint in found)


def _ports(text: str) -> tuple[int, ...]:
    ports = tuple(map(_count(1), text.split(",")))
    if max(ports) > 0xFFFF:
        raise ValueError
    return ports


def _offsets(*words: str) -> Callable[[str], str | int | dict[int, int]]:
    def read(text: str) -> str | int | dict[int, int]:
        """Read a word, offsets by partition, or an instant."""
        if text.strip().lower() in words:
            return text.strip().lower()
        if not text.strip().startswith("{"):
            return _instant(text)
        return _by_partition(json.loads(text))

    return read


def _by_partition(found: Any) -> dict[int, int]:
    """Return offsets by partition from their JSON."""
    if not isinstance(found, dict) or not found:
        raise ValueError
    for number, offset in found.items():
        if not number.isdecimal() or type(offset) is not int or offset < 0:
            raise ValueError
    return {int(number): offset for number, offset in sorted(found.items())}


def _several_offsets(text: str) -> tuple[dict[int, int], ...]:
    found = json.loads(text)
    if not isinstance(found, list) or len(found) > MAX_BATCH_ENDS:
        raise ValueError
    return tuple(map(_by_partition, found))


def _instant(text: str) -> int:
    """Read microseconds since 1970 from milliseconds or a time."""
    if re.fullmatch(r"\d{1,15}", text.strip()):
        return int(text) * 1000
    return quantities.instant(text) // 1000


def _spell(text: str) -> str:
    return text.strip().lower().replace("-", "_")


def _one_of(*words: str) -> Kind:
    return checked.one_of(*words, spell=_spell)


PRIORITIES = {
    level.name.lower(): int(level) for level in WirePriority if level is not WirePriority.CONTROL
}


def _priority(text: str) -> int:
    word = _spell(text)
    number = int(word) if word.isdecimal() else PRIORITIES.get(word, 0)
    if number not in PRIORITIES.values():
        raise ValueError
    return number


def _config(text: str) -> str:
    """Check that it looks like a configuration; its content is checked where it is used."""
    if not text.strip().startswith("{") and PurePath(text.strip()).suffix not in CONFIG_ENDINGS:
        raise ValueError
    return text.strip()


BOOLEAN = Kind("true or false", _boolean)
COUNT = Kind("a whole number from 1 on", _count(1))
NUMBER = Kind("a whole number from 0 on", _count(0))
SIZE = Kind("a size such as 64MiB, or a number of bytes", quantities.size)
SECONDS = Kind("seconds, or a duration such as 500ms, 5m or 1h30m", _seconds)
LIMIT = Kind("an age such as 7d, a size such as 100GiB, or both with a comma", quantities.limit)
NAMES = Kind("names with commas between them", _names)
PATHS = Kind("a path, or a JSON list of paths", _paths)
KEY_EXPR = Kind("a key expression, such as robot/*/battery", _key_expr)
SELECTOR = Kind("a selector, such as robot/**?_time=[now(-1h)..]", _selector)
ENDPOINTS = Kind("endpoints with commas between them, such as tcp/127.0.0.1:7447", _endpoints)
PORTS = Kind("port numbers with commas between them", _ports)
_WHERE = 'or JSON such as {"0": 1200}, or a time such as 2026-08-22T10:00:00Z'
START = Kind(f"earliest, latest, {_WHERE}", _offsets("earliest", "latest"))
END = Kind(f"latest, {_WHERE}", _offsets("latest"))
SEVERAL_OFFSETS = Kind(
    f'a JSON list of at most {MAX_BATCH_ENDS} offsets such as [{{"0": 1200}}]', _several_offsets
)
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
        """Whether it may hold a secret: a configuration, or the part of an endpoint after '#'."""
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
    Option("paths", PATHS, None, _CAPTURE, "capture files, as Spark writes them for load([...])"),
    Option("columns", NAMES, None, _READS, "only these columns, in this order"),
    Option("keyExpr", KEY_EXPR, None, _LOG, "only samples whose key this matches"),
    Option("startingOffsets", START, "earliest", _LOG, "where a new query starts reading"),
    Option("endingOffsets", END, "latest", _BATCH, "where a batch ends, not included"),
    Option("startingTimestamp", INSTANT, None, _LOG, "from the first sample received then"),
    Option("endingTimestamp", INSTANT, None, _BATCH, "up to the first sample received then"),
    Option("maxRowsPerTrigger", COUNT, None, _STREAM, "rows of one micro-batch"),
    Option("maxBytesPerTrigger", SIZE, None, _STREAM, "bytes of the log in one micro-batch"),
    Option("batchEnds", SEVERAL_OFFSETS, (), _STREAM, "offsets that no micro-batch goes across"),
    Option("minPartitions", COUNT, None, _LOG, "at least as many tasks, if there are rows"),
    Option("failOnDataLoss", BOOLEAN, True, _LOG, "fail when rows asked for are gone"),
    Option("includeLoss", INCLUDE_LOSS, "false", _LOG, "a column `loss`, a row for each gap"),
    Option("duplicates", DUPLICATES, "keep", _LOG, "what to do with samples received before"),
    Option(
        "duplicatesWithin",
        SECONDS,
        600.0,
        _LOG,
        "how long a sample is remembered to find duplicates",
    ),
    Option("startName", TEXT, None, _STREAM, "tells queries with equal options apart"),
    Option("recorderPartition", NUMBER, 0, _STREAM, "the partition that the recorder writes"),
    Option("key", KEY_EXPR, "**", _STREAM, "what the recorder subscribes to"),
    Option("codec", CODEC, None, _STREAM, "how the recorder compresses"),
    Option("retain", LIMIT, None, _STREAM, "how much the recorder keeps"),
    Option("rotate", SIZE, None, _STREAM, "when the recorder starts a new segment"),
    Option("sync", SECONDS, None, _STREAM, "how long samples may wait until they are durable"),
    Option("selector", SELECTOR, None, _LIVE, "the selector to query"),
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
    """Return the options of a purpose by their names in lower case, as Spark passes them."""
    return {option.name.lower(): option for option in OPTIONS if purpose in option.purposes}


_NAMES = {option.name.lower(): option.name for option in OPTIONS}


# ---- parsing


@dataclass(frozen=True, repr=False)
class Options:
    """Checked values of one purpose, by the names of the table; defaults included.

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
    "Names of the options that the user gave."

    @classmethod
    def parse(cls, raw: Mapping[str, str], purpose: Purpose) -> "Options":
        """Check options as Spark passes them. ZError: names the option and what to write."""
        known = table(purpose)
        values: dict[str, Any] = {option.name: option.default for option in known.values()}
        given = set()
        for name, text in sorted(_own_options(raw)):
            option = known.get(name)
            if option is None:
                raise _refuse_name(name, (purpose,))
            values[option.name] = _read(option, text)
            given.add(option.name)
        for edge in ("starting", "ending"):  # An instant given as offsets is a timestamp.
            if type(values.get(f"{edge}Offsets")) is int:
                values[f"{edge}Timestamp"] = values[f"{edge}Offsets"]
                values[f"{edge}Offsets"] = known[f"{edge}offsets"].default
        return cls(purpose, values, frozenset(given))

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def require(self, *names: str) -> None:
        """Check that at least one of `names` was given. ZError: none was."""
        if not any(self.values[name] is not None for name in names):
            options = {option.name: option for option in table(self.purpose).values()}
            first = options[names[0]]
            others = "".join(f" (or {name!r})" for name in names[1:])
            raise ZError(
                f"option {first.name!r}{others} is missing: {first.help}; {first.kind.what}"
            )

    def __repr__(self) -> str:
        known = table(self.purpose)
        shown = (
            f"{name}={_format_value(known[name.lower()], self[name])}"
            for name in sorted(self.given)
        )
        return f"Options({', '.join([self.purpose.value, *shown])})"


def check(raw: Mapping[str, str], purposes: Iterable[Purpose]) -> None:
    """Check every name and value where the purpose is one of `purposes`, not yet known which."""
    tables = [table(purpose) for purpose in purposes]
    for name, text in sorted(_own_options(raw)):
        found = [known[name] for known in tables if name in known]
        if not found:
            raise _refuse_name(name, purposes)
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


def _own_options(raw: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name.lower(), raw[name]) for name in raw if name.lower() not in OF_SPARK]


def _read(option: Option, text: str) -> Any:
    where = f"option {option.name!r}"
    return checked.read(option.kind, text, where, secret=option.is_secret)


def _refuse_name(name: str, purposes: Iterable[Purpose]) -> ZError:
    allowed = {
        lower: option.name for purpose in purposes for lower, option in table(purpose).items()
    }
    here = " or ".join(purpose.value for purpose in purposes)
    if name in _NAMES:
        theirs = {
            other.value
            for option in OPTIONS
            if option.name.lower() == name
            for other in option.purposes
        }
        return ZError(
            f"option {_NAMES[name]!r} is of {', '.join(sorted(theirs))}, not of {here}: leave it "
            f"out. There are {', '.join(sorted(allowed.values()))}"
        )
    return checked.unknown_option(name, dict(sorted(allowed.items())))


def _format_value(option: Option, value: Any) -> str:
    if option.kind is CONFIG:
        return "***"
    if option.kind is ENDPOINTS:
        return repr(tuple(endpoint.partition("#")[0] for endpoint in value))
    return repr(value)
