"""The settings of a lake: `lake.toml`, read and checked.

Knows names, kinds of values and paths. Opens no table and no log; imports neither Spark nor Arrow.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zenlake import checked, quantities
from zenlake.checked import Kind
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr
from zenlake.log import MAX_PARTITION
from zenlake.wire.locator import EndPoint

FILE = "lake.toml"
STATE = "state"
MAX_BYTES = 1 << 20  # Largest lake.toml.
MAX_ROWS = 1 << 31
RETAINED = ("log", "samples", "messages", "loss", "health", "tombstones")


@dataclass(frozen=True)
class RecordSettings:
    """Settings of the recorder that `zenlake lake run` starts."""

    connect: tuple[str, ...] = ()
    keys: tuple[str, ...] = ("**",)
    mode: str = "client"
    codec: str = "zstd"
    partition: int = 0
    config: Path | None = None
    "A Zenoh configuration file, for credentials and other settings of the session."


@dataclass(frozen=True)
class MaintenanceSettings:
    """Settings of compaction and vacuum."""

    every: float | None = 600.0
    "Seconds between two runs; None never runs them."
    target: int = 128 << 20
    "Size of a compacted file in bytes."
    vacuum_after: float = 3600.0
    "Seconds that a file stays for readers after it has left its table."


@dataclass(frozen=True)
class Project:
    """A lake: its paths and its settings."""

    home: Path
    name: str
    log: Path
    tables: Path
    record: RecordSettings | None = None
    duplicates_within: float = 600.0
    max_rows: int = 1_000_000
    "Upper bound on the samples of a micro-batch."
    max_bytes: int = 512 << 20
    "Upper bound on the bytes of the log that a micro-batch reads."
    retention: Mapping[str, float] = field(default_factory=dict)
    "Seconds that rows are kept, by the names of RETAINED; a missing one keeps them for ever."
    upkeep: MaintenanceSettings = MaintenanceSettings()
    decoders: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def load(cls, where: Path | str) -> "Project":
        """Read the lake.toml of a folder, or at a path.

        ZError: it is missing, or not valid; names the line or setting, and the remedy.
        """
        path = Path(where)
        path = path / FILE if path.is_dir() else path
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise ZError(
                f"there is no lake at {where} ({error.strerror}: {path}); "
                f"`zenlake lake init {where}` creates one"
            ) from None
        if len(raw) > MAX_BYTES:
            raise ZError(
                f"{path} is larger than {MAX_BYTES >> 20} MiB: it is not a valid lake.toml"
            )
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise ZError(f"{path}: byte {error.start} is not UTF-8: save it as UTF-8") from None
        return cls.parse(text, path)

    @classmethod
    def parse(cls, text: str, path: Path | str = FILE) -> "Project":
        """Read the text of a lake.toml; `path` is where it is, or would be.

        >>> project = Project.parse('[lake]\\nname = "fleet"\\n[retention]\\nlog = "2d"\\n')
        >>> project.name, project.retention, project.upkeep.every, project.record
        ('fleet', {'log': 172800.0}, 600.0, None)
        >>> Project.parse('[lake]\\nname = "fleet"\\n[retension]\\nlog = "2d"\\n')
        Traceback (most recent call last):
        zenlake.errors.ZError: lake.toml: there is no [retension]; did you mean [retention]?
        """
        try:
            raw = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ZError(f"{path}: {error}") from None
        home = Path(path).absolute().parent
        found = {name: _read_section(name, raw.get(name), path) for name in SECTIONS}
        for name in raw:
            _check_name(name, (*SECTIONS, "decoders"), f"{path}: there is no [{{}}]", "[{}]")
        if "lake" not in raw or "name" not in found["lake"]:
            raise ZError(f'{path}: [lake] with a name is missing: write name = "fleet" under it')
        record = found["record"]
        if "config" in record:
            record["config"] = home / record["config"]
        samples = found["samples"]
        return cls(
            home=home,
            name=found["lake"]["name"],
            log=home / found["lake"].get("log", "log"),
            tables=home / found["lake"].get("tables", "tables"),
            record=RecordSettings(**record) if "record" in raw else None,
            retention=found["retention"],
            upkeep=MaintenanceSettings(**found["upkeep"]),
            decoders=_read_decoders(raw.get("decoders", []), path),
            **samples,
        )

    @property
    def state(self) -> Path:
        """Folder of the checkpoints and of Spark's log: always in the folder of the lake."""
        return self.home / STATE

    def table(self, name: str) -> Path:
        """Return the folder of a table."""
        return self.tables / name


def find(start: Path | str = ".") -> Project:
    """Load the lake that a folder belongs to: lake.toml is in it or in the nearest folder above.

    ZError: there is none.
    """
    here = Path(start).absolute()
    for folder in (here, *here.parents):
        if (folder / FILE).is_file():
            return Project.load(folder)
    raise ZError(f"no {FILE} in {here} or above it: go to a lake, or create one: zenlake lake init")


# ---- readers of values; ValueError: the value is not of this kind


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


def _read_seconds(value: Any) -> float:
    seconds = quantities.seconds(checked.text(value))
    if seconds == 0.0:
        raise ValueError
    return seconds


def _read_every(value: Any) -> float | None:
    return None if value == "never" else _read_seconds(value)


def _read_size(value: Any) -> int:
    size = quantities.size(checked.text(value))
    if not 1 << 16 <= size <= 1 << 40:
        raise ValueError
    return size


def _read_folder(value: Any) -> str:
    if "://" in checked.text(value):
        raise ValueError
    return str(value)


def _read_name(value: Any) -> str:
    if not _NAME.fullmatch(checked.text(value)):
        raise ValueError
    return str(value)


def _list_reader(read: Callable[[str], object]) -> Callable[[Any], tuple[str, ...]]:
    def read_all(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            raise ValueError
        return tuple(str(read(checked.text(item))) for item in value)

    return read_all


FOLDER = Kind(
    "the path of a folder on a file system (object stores are not supported)", _read_folder
)
NAME = Kind("a name of letters, digits, '.', '_' and '-', such as fleet", _read_name)
TIME = Kind("a duration such as 90s, 10m, 1h30m or 30d", _read_seconds)
EVERY = Kind('a duration such as 10m or 1h, or "never"', _read_every)
SIZE = Kind("a size from 64KiB to 1TiB, such as 128MiB or 1GB", _read_size)
FORMAT = Kind('"delta", the only format of tables (or leave it out)', checked.one_of("delta").read)
ROWS = Kind("a whole number from 1 on", checked.whole(1, MAX_ROWS))
PARTITION = Kind("a whole number from 0 on", checked.whole(0, MAX_PARTITION))
ENDPOINTS = Kind('a list of endpoints, such as ["tcp/127.0.0.1:7447"]', _list_reader(EndPoint))
KEYS = Kind('a list of key expressions, such as ["robot/**"]', _list_reader(KeyExpr.autocanonize))

SECTIONS: dict[str, dict[str, Kind]] = {
    "lake": {"name": NAME, "log": FOLDER, "tables": FOLDER, "format": FORMAT},
    "record": {
        "connect": ENDPOINTS,
        "keys": KEYS,
        "mode": checked.one_of("client", "peer"),
        "codec": checked.one_of("none", "lz4", "zstd"),
        "partition": PARTITION,
        "config": checked.TEXT,
    },
    "samples": {"duplicates_within": TIME, "max_rows": ROWS, "max_bytes": SIZE},
    "retention": dict.fromkeys(RETAINED, TIME),
    "upkeep": {"every": EVERY, "target": SIZE, "vacuum_after": TIME},
}
"Every name that lake.toml may have, by section."


def _read_section(name: str, raw: object, path: Path | str) -> dict[str, Any]:
    """Return the values of a section; {} if it is missing."""
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ZError(f"{path}: {name} is a section: write [{name}], and its names under it")
    kinds = SECTIONS[name]
    for option in raw:
        _check_name(option, tuple(kinds), f"{path}: [{name}] has no {{}}", "{}")
    return {
        option: checked.read(kinds[option], value, f"{path}: [{name}] {option}")
        for option, value in raw.items()
    }


def _check_name(name: str, names: tuple[str, ...], problem: str, quoted: str) -> None:
    if name not in names:
        raise ZError(f"{problem.format(name)}; {checked.suggest(name, names, quoted)}")


def _read_decoders(raw: object, path: Path | str) -> tuple[Mapping[str, Any], ...]:
    """Return the rules as they are written; a decoder checks its own arguments."""
    if not isinstance(raw, list) or not all(isinstance(rule, dict) for rule in raw):
        raise ZError(f"{path}: decoders are sections: write [[decoders]] above each")
    for number, rule in enumerate(raw, 1):
        where = f"{path}: [[decoders]] {number}"
        if "use" not in rule:
            raise ZError(f'{where}: say what decodes: use = "json", or use = "module:function"')
        for name in ("encoding", "schema", "use"):
            if name in rule:
                checked.read(checked.TEXT, rule[name], f"{where} {name}")
        if "key" in rule:
            checked.read(KEYS, [rule["key"]], f"{where} key")
    return tuple(raw)
