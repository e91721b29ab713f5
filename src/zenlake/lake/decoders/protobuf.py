"""Decoder of Protocol Buffers by compiled descriptors, in protobuf's JSON form, row by row.

Knows `protoc --descriptor_set_out` files. The schema is the full name of the message.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message_factory,
)
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from zenlake.errors import ZError
from zenlake.lake.decoders.values import Decode, Decoded, Undecodable, decode_rows, fail_all

MAX_DESCRIPTOR_BYTES = 64 << 20
NO_DESCRIPTOR = (
    "nothing describes the message: compile its .proto with `protoc --include_imports "
    "--descriptor_set_out=FILE`, and name FILE as `descriptor` in [[decoders]] with "
    'use = "protobuf"'
)
NO_NAME = "nothing names the message: publish with a schema, or give `type` in [[decoders]]"


def decoder(
    home: Path,
    *,
    descriptor: str | None = None,
    type: str | None = None,  # noqa: A002
) -> Decode:
    """Return the decoder of protobuf payloads.

    `descriptor` is a file of descriptors, `type` the message where no schema names one.
    """
    pool = None if descriptor is None else load_pool(home / descriptor)
    if pool is not None and type is not None:
        _message(pool, type)

    def decode(payloads: pa.Array, rows: pa.RecordBatch) -> Decoded:
        name = rows.column("schema")[0].as_py() or type
        if pool is None or name is None:
            return fail_all(len(payloads), NO_NAME if pool is not None else NO_DESCRIPTOR)
        try:
            message = _message(pool, name)
        except ZError as error:
            return fail_all(len(payloads), str(error))
        return decode_rows(payloads, lambda data: _read(pool, message, data))

    return decode


def load_pool(path: Path) -> Any:
    """Load the descriptors of a file. ZError: they cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_DESCRIPTOR_BYTES + 1)
    except OSError as error:
        raise ZError(f"descriptor {path}: {error.strerror}") from None
    if len(raw) > MAX_DESCRIPTOR_BYTES:
        raise ZError(f"descriptor {path} is larger than {MAX_DESCRIPTOR_BYTES >> 20} MiB")
    pool = descriptor_pool.DescriptorPool()
    try:
        for proto in descriptor_pb2.FileDescriptorSet.FromString(raw).file:
            pool.AddSerializedFile(proto.SerializeToString())
    except (DecodeError, TypeError) as error:
        raise ZError(
            f"descriptor {path}: {error}; make it with protoc --include_imports "
            "--descriptor_set_out"
        ) from None
    return pool


@lru_cache(maxsize=256)
def _message(pool: Any, name: str) -> Any:
    try:
        found = pool.FindMessageTypeByName(name.rpartition("/")[2].lstrip("."))
    except KeyError:
        raise ZError(f"the descriptors have no message {name[:100]!r}") from None
    return message_factory.GetMessageClass(found)


def _read(pool: Any, message: Any, data: bytes) -> Any:
    try:
        return json_format.MessageToDict(
            message.FromString(data),
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            descriptor_pool=pool,
        )
    except DecodeError as error:
        raise Undecodable(f"not a {message.DESCRIPTOR.full_name}: {error}") from None
