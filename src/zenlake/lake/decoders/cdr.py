"""Decoder of CDR: messages of ROS 2, row by row.

Knows where message definitions come from, and the three notations of type names.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from rosbags.serde import SerdeError
from rosbags.typesys import (
    Stores,
    TypesysError,
    get_types_from_idl,
    get_types_from_msg,
    get_typestore,
)
from rosbags.typesys.store import Typestore

from zenlake.errors import ZError
from zenlake.lake.decoders.values import (
    MAX_PAYLOAD_BYTES,
    Decode,
    Decoded,
    Undecodable,
    decode_rows,
)

MAX_DEFINITIONS = 10_000  # Upper bound on files of definitions.
MAX_DEFINITION_BYTES = 1 << 20  # Upper bound on the size of such a file.
DISTROS = {
    store.value.removeprefix("ros2_"): store for store in Stores if "ros1" not in store.value
}
NOT_FIELDS = {"__msgtype__", "structure_needs_at_least_one_member"}

_DDS = re.compile(r"(\w+)::(msg|srv|action)::dds_::(\w+?)_")
_ROS = re.compile(r"(\w+)/(?:(msg|srv|action)/)?(\w+)")


def decoder(
    home: Path,
    *,
    distro: str = "latest",
    definitions: str | None = None,
    type: str | None = None,  # noqa: A002
) -> Decode:
    """Return the decoder of CDR payloads.

    `distro` is the ROS 2 release whose types are known, `definitions` a file or a folder with .msg
    and .idl files, `type` the type of payloads where neither the schema nor the key names one.
    """
    if distro not in DISTROS:
        raise ZError(f"there is no distro {distro!r}: there are {', '.join(DISTROS)}")
    store = _store(distro, None if definitions is None else home / definitions)
    default_type = type and (normalize_type(type) or type)
    if default_type is not None:
        _require_type(store, default_type)

    def decode(payloads: pa.Array, rows: pa.RecordBatch) -> Decoded:
        schema = rows.column("schema")[0].as_py()
        if schema is not None:
            return _by_type(store, normalize_type(schema) or schema, payloads)
        keys = rows.column("key").dictionary_encode()
        types = [type_from_key(key) or default_type for key in keys.dictionary.to_pylist()]
        if len(set(types)) == 1:
            return _by_type(store, types[0], payloads)
        named = iter(keys.indices.to_pylist())
        return decode_rows(payloads, lambda data: _read(store, types[next(named)], data), _fields)

    return decode


def normalize_type(text: str) -> str | None:
    """Return the name of a type in the form package/msg/Type; None if it is not a type name.

    >>> normalize_type("std_msgs/String"), normalize_type("std_msgs::msg::dds_::String_")
    ('std_msgs/msg/String', 'std_msgs/msg/String')
    >>> normalize_type("?") is None
    True
    """
    found = _DDS.fullmatch(text) or _ROS.fullmatch(text)
    return f"{found[1]}/{found[2] or 'msg'}/{found[3]}" if found else None


def type_from_key(key: str | None) -> str | None:
    """Return the type in the last chunk but one of a key of rmw_zenoh; None if there is none.

    >>> type_from_key("0/chatter/std_msgs::msg::dds_::String_/RIHS01_df66")
    'std_msgs/msg/String'
    """
    parts = (key or "").split("/")
    return normalize_type(parts[-2]) if len(parts) > 2 and "::" in parts[-2] else None


def _by_type(store: Typestore, name: str | None, payloads: pa.Array) -> Decoded:
    return decode_rows(payloads, lambda data: _read(store, name, data), _fields)


def _read(store: Typestore, name: str | None, data: bytes) -> Any:
    if name is None:
        raise Undecodable("nothing names the type: publish with a schema, or give `type`")
    _require_type(store, name)
    try:
        return store.deserialize_cdr(data, name)
    except SerdeError as error:
        raise Undecodable(f"not a {name}: {error}") from None


def _require_type(store: Typestore, name: str) -> None:
    if name not in store.fielddefs:
        raise Undecodable(
            f"the type {name[:100]!r} is not known: give the folder of its .msg files as "
            '`definitions` in [[decoders]] with use = "cdr"'
        )


def _fields(message: Any) -> dict[str, Any]:
    """Return the fields of a message, without fields that rosbags or empty messages add."""
    return {
        name: getattr(message, name)
        for name in message.__dataclass_fields__
        if name not in NOT_FIELDS
    }


@lru_cache(maxsize=8)
def _store(distro: str, definitions: Path | None) -> Typestore:
    store = get_typestore(DISTROS[distro])
    store.max_sequence_length = MAX_PAYLOAD_BYTES
    if definitions is not None:
        types: dict[str, Any] = {}
        for path in _files(definitions):
            types.update(_types(path))
        try:
            store.register(types)
        except TypesysError as error:
            raise ZError(f"definitions {definitions}: {error}") from None
    return store


def _files(where: Path) -> list[Path]:
    found = [where] if where.is_file() else sorted((*where.rglob("*.msg"), *where.rglob("*.idl")))
    if not found or len(found) > MAX_DEFINITIONS:
        raise ZError(
            f"definitions {where}: {len(found)} .msg and .idl files; there should be 1 to "
            f"{MAX_DEFINITIONS}"
        )
    return found


def _types(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_DEFINITION_BYTES:
        raise ZError(f"definitions: {path} is larger than {MAX_DEFINITION_BYTES >> 20} MiB")
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".idl":
            return dict(get_types_from_idl(text))
        folder = path.parent.parent if path.parent.name == "msg" else path.parent
        return dict(get_types_from_msg(text, f"{folder.name}/msg/{path.stem}"))
    except (TypesysError, UnicodeDecodeError) as error:
        raise ZError(f"definitions: {path}: {error}") from None
