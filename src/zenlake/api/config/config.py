"""`Config`: the configuration of a session, checked key by key as it is written.

Knows JSON5, YAML and TOML, keys as paths, and values by mode. Does not know what a key does.
"""

import copy
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import getitem
from os import PathLike
from pathlib import Path
from typing import Any, final

import json5
import yaml

from zenlake.api.config.schema import (
    KEYS,
    ROLES,
    TREE,
    Check,
    Field,
    Section,
    Struct,
    near_hint,
)
from zenlake.errors import ZError
from zenlake.wire.enums import WireWhatAmI

MAX_FILE_BYTES = 16 * 1024 * 1024
FREE = "plugins"  # Section below which any key and value is allowed.
_YAML_DATE = "tag:yaml.org,2002:timestamp"
_JSON5_ERROR = re.compile(r'<string>:(\d+) Unexpected "?(.*?)"? at column (\d+)')
PRIVATE = "private"  # Name in the FREE section below which values are not printed.


class NotJson5(ZError):
    """Text that is not JSON5; the error names line and column."""


@final
class Config:
    """Configuration of a session.

    Keys are paths, values are JSON5 texts. An unset value is `null` and has a default that may
    depend on the mode; a value that differs by mode is `{router: ..., peer: ..., client: ...}`.

    >>> config = Config()
    >>> config.insert_json5("mode", "'client'")
    >>> config.insert_json5("connect/endpoints", '["tcp/127.0.0.1:7447"]')
    >>> config.get_json("connect/endpoints")
    '["tcp/127.0.0.1:7447"]'
    >>> config.insert_json5("scouting/multicast/enable", "false")
    Traceback (most recent call last):
    zenlake.errors.ZError: unknown key `scouting/multicast/enable`; did you mean `enabled`?
    """

    __slots__ = ("_tree",)
    __hash__ = None  # type: ignore[assignment]  # A Config is mutable.

    DEFAULT_CONFIG_PATH_ENV = "ZENOH_CONFIG"
    "Environment variable that names the file of `from_env`."

    def __init__(self) -> None:
        self._tree: dict[str, Any] = TREE({}, "")

    @classmethod
    def from_env(cls) -> "Config":
        """Read the file that the environment variable ZENOH_CONFIG names."""
        path = os.environ.get(cls.DEFAULT_CONFIG_PATH_ENV)
        if path is None:
            name = cls.DEFAULT_CONFIG_PATH_ENV
            raise ZError(f"environment variable not found: set {name} to a configuration file")
        return cls.from_file(path)

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> "Config":
        """Read a file in JSON5, YAML or TOML, by the extension of its name."""
        at = Path(os.fsdecode(path))
        read = READERS.get(at.suffix)
        if read is None:
            what = f"'{at.suffix}'" if at.suffix else "without an extension"
            raise ZError(f"{at}: unsupported file type {what}; use one of {', '.join(READERS)}")
        try:
            with at.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
            if len(data) > MAX_FILE_BYTES:
                raise ZError(f"{at}: more than {MAX_FILE_BYTES} bytes: not a configuration")
            text = data.decode()
        except OSError as error:
            raise ZError(f"{at}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise ZError(f"{at}: byte {error.start} is not UTF-8") from None
        if not text.strip():
            raise ZError(f"{at}: empty config file")
        try:
            return cls._of(read(text))
        except (ZError, ValueError, yaml.YAMLError) as error:
            raise ZError(f"{at}: {error}") from None

    @classmethod
    def from_json5(cls, json: str) -> "Config":
        """Read a JSON5 text.

        >>> Config.from_json5("{mode: 'client', /* by default a peer */}").get_json("mode")
        '"client"'
        """
        return cls._of(_read_json5(_text("json", json)))

    @classmethod
    def _of(cls, value: Any) -> "Config":
        return _restore(TREE(value, ""))

    def get_json(self, /, key: str) -> str:
        """Return the value or section at `key` as JSON.

        >>> Config().get_json("transport/link/tx/lease"), Config().get_json("mode")
        ('10000', 'null')
        """
        path = _split(_text("key", key))
        if path[:1] == [FREE]:
            return _to_json(_get_free(self._tree[FREE], path[1:], key))
        field = _find(path, key, "NoMatchingKey: no key")
        return _to_json(_without_hidden(field.check, reduce(getitem, path, self._tree)))

    def insert_json5(self, /, key: str, value: str) -> None:
        """Set `key` to the JSON5 text `value`; in a section, fields that `value` does not name are
        reset.
        """
        path = _split(_text("key", key))
        given = _read_json5(_text("value", value))
        if path[:1] == [FREE] and len(path) > 1:
            _insert_free(self._tree[FREE], path[1:], given, key)
            return
        field = _find(path, key, "unknown key")
        taken = field.check(given, "/".join(path))
        reduce(getitem, path[:-1], self._tree)[path[-1]] = taken

    def __str__(self) -> str:
        """Return the configuration as JSON with sorted keys; without secrets that have no file."""
        return _to_json(_without_private(_without_hidden(TREE, self._tree)), sort_keys=True)

    def __repr__(self) -> str:
        changed = (
            f"{key}={'***' if KEYS[key].hidden or KEYS[key].secret else _to_json(value)}"
            for key, value in changes(self)
        )
        return f"<Config {' '.join(changed) or 'of defaults'}>"

    def __eq__(self, other: object) -> bool:
        return self._tree == other._tree if isinstance(other, Config) else NotImplemented

    def __copy__(self) -> "Config":
        return copy.deepcopy(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._tree,)


def _restore(tree: dict[str, Any]) -> Config:
    config = Config.__new__(Config)
    config._tree = tree
    return config


def _find(path: list[str], key: str, problem: str) -> Field:
    """Return the field that `path` names; ZError with the nearest name in its section."""
    field = Field(TREE, "section")
    for name in path:
        known = field.check.fields if isinstance(field.check, Section) else {}
        if name not in known:
            raise ZError(f"{problem} `{key}`{near_hint(name, known)}")
        field = known[name]
    if not path:
        raise ZError(f"{problem} `{key}`: it names nothing")
    return field


# ---- for opening a session


def for_mode(config: Config, key: str, whatami: WireWhatAmI) -> Any:
    """Return what `key` means for a node of this role: the value, that of its mode, or the default.

    >>> for_mode(Config(), "listen/endpoints", WireWhatAmI.ROUTER)
    ['tcp/[::]:7447']
    >>> for_mode(Config(), "connect/timeout_ms", WireWhatAmI.CLIENT)
    0
    """
    field, value = KEYS[key], reduce(getitem, key.split("/"), config._tree)
    if "by mode" in field.kind:
        value = of_mode(value, whatami)
    return copy.deepcopy(of_mode(field.unset, whatami) if value is None else value)


def of_mode(value: Any, whatami: WireWhatAmI) -> Any:
    """Return the part for one role if `value` has parts by role, else `value`."""
    if isinstance(value, dict) and all(name in ROLES for name in value):
        return value.get(str(whatami.name).lower())
    return value


def changes(config: Config) -> Iterator[tuple[str, Any]]:
    """Yield every key whose value is not the default, with the value."""

    for key, field in KEYS.items():
        value = reduce(getitem, key.split("/"), config._tree)
        if value != field.default:
            yield key, value


# ---- texts


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"argument '{name}': {type(value).__name__!r} is not a str")
    return value


def _split(key: str) -> list[str]:
    return [part for part in key.split("/") if part]


def _to_json(value: Any, *, sort_keys: bool = False) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=sort_keys)


def _reject_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for name, value in pairs:
        if name in seen:
            raise ValueError(f"duplicate field `{name}`")
        seen[name] = value
    return seen


def _read_json5(text: str) -> Any:
    try:
        return json.loads(
            text, object_pairs_hook=_reject_duplicates, parse_constant=_reject_constant
        )
    except json.JSONDecodeError:
        pass  # Not JSON; the text may be JSON5.
    except (ValueError, RecursionError) as error:
        raise NotJson5(f"JSON5: {error}") from None
    try:
        return json5.loads(
            text, object_pairs_hook=_reject_duplicates, parse_constant=_reject_constant
        )
    except (ValueError, RecursionError) as error:
        found = _JSON5_ERROR.fullmatch(str(error))
        where = f"line {found[1]}, column {found[3]}: unexpected {found[2]}" if found else error
        raise NotJson5(f"JSON5: {where}") from None


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not a value for a configuration")


class _YamlLoader(yaml.SafeLoader):
    """Loader that refuses repeated keys and takes dates for texts, as Rust does."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _YAML_DATE]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"duplicate field `{key.value}`", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read_yaml(text: str) -> Any:
    return _fill_empty(Field(TREE, "section"), yaml.load(text, _YamlLoader))


def _fill_empty(field: Field, value: Any) -> Any:
    """Return `value` with objects and lists for the sections that a YAML file leaves empty, as Rust
    reads them."""
    if value is None and isinstance(field.check, Struct):
        return {}
    if value is None and field.kind.startswith("list of "):
        return []
    if isinstance(field.check, Section) and isinstance(value, dict):
        known = field.check.fields
        return {
            name: _fill_empty(known[name], item) if name in known else item
            for name, item in value.items()
        }
    return value


READERS: dict[str, Callable[[str], Any]] = {
    ".json": _read_json5,
    ".json5": _read_json5,
    ".yaml": _read_yaml,
    ".yml": _read_yaml,
    ".toml": tomllib.loads,
}


# ---- what is shown


def _without_hidden(check: Check, value: Any) -> Any:
    if not isinstance(check, Section):
        return value
    return {
        name: _without_hidden(field.check, value[name])
        for name, field in check.fields.items()
        if not field.hidden
    }


def _without_private(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_private(item) for name, item in value.items() if name != PRIVATE}
    if isinstance(value, list):
        return [_without_private(item) for item in value]
    return value


# ---- below `plugins`


def _get_free(value: Any, path: list[str], key: str) -> Any:
    if not path:
        return _without_private(value)
    for name in path:
        try:
            value = value[int(name) if isinstance(value, list) else name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise ZError(f"NoMatchingKey: no key `{key}`") from None
    return value


def _insert_free(value: Any, path: list[str], given: Any, key: str) -> None:
    """Set a value in a free section; make missing lists and objects. `+` is the end of a list."""
    for name, after in zip(path, [*path[1:], None], strict=True):
        fresh = given if after is None else [] if after in ("0", "+") else {}
        if isinstance(value, list):
            at = len(value) if name == "+" else int(name) if name.isdecimal() else -1
            if not 0 <= at <= len(value):
                raise ZError(f"{key} not found")
            value[at:at] = [None] if at == len(value) else []
            place: Any = at
        elif isinstance(value, dict):
            place = name
        else:
            raise ZError(f"{key} not found")
        held = value.get(place) if isinstance(value, dict) else value[place]
        if after is None or held is None:
            value[place] = held = fresh
        value = held
