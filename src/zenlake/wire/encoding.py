"""Encoding: what a payload is, as a number and an optional schema.

Knows the predefined table, the text form and the bytes. Does not know how to decode a payload.
"""

from dataclasses import dataclass

from zenlake.errors import DecodeError, Reason
from zenlake.wire.cursor import U8, U16, U32, ByteReader, ByteWriter

CUSTOM_ID = 0xFFFF
SCHEMA_SEPARATOR = ";"

# The position is the id (zenoh zenoh/src/api/encoding.rs).
PREDEFINED = (
    "zenoh/bytes",
    "zenoh/string",
    "zenoh/serialized",
    "application/octet-stream",
    "text/plain",
    "application/json",
    "text/json",
    "application/cdr",
    "application/cbor",
    "application/yaml",
    "text/yaml",
    "text/json5",
    "application/python-serialized-object",
    "application/protobuf",
    "application/java-serialized-object",
    "application/openmetrics-text",
    "image/png",
    "image/jpeg",
    "image/gif",
    "image/bmp",
    "image/webp",
    "application/xml",
    "application/x-www-form-urlencoded",
    "text/html",
    "text/xml",
    "text/css",
    "text/javascript",
    "text/markdown",
    "text/csv",
    "application/sql",
    "application/coap-payload",
    "application/json-patch+json",
    "application/json-seq",
    "application/jsonpath",
    "application/jwt",
    "application/mp4",
    "application/soap+xml",
    "application/yang",
    "audio/aac",
    "audio/flac",
    "audio/mp4",
    "audio/ogg",
    "audio/vorbis",
    "video/h261",
    "video/h263",
    "video/h264",
    "video/h265",
    "video/h266",
    "video/mp4",
    "video/ogg",
    "video/raw",
    "video/vp8",
    "video/vp9",
)
IDS = {text: number for number, text in enumerate(PREDEFINED)}


@dataclass(frozen=True, slots=True, order=True)
class WireEncoding:
    """
     % id << 1 | S   %   z32
     ~ schema <u8>   ~   if S

    The text is `type` or `type;schema`. A type that is not predefined travels as id 65535 with the
    whole text as schema.

    >>> WireEncoding.parse("application/json;fleet.Pose")
    Encoding(application/json;fleet.Pose)
    >>> WireEncoding.parse("foo/bar").id
    65535
    """

    id: int = 0
    schema: bytes | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.id <= U16:
            raise ValueError(f"{self.id} is not an encoding id (0 to 65535)")
        if self.schema is not None and len(self.schema) > U8:
            raise ValueError(f"a schema has at most 255 bytes, not {len(self.schema)}")

    @classmethod
    def parse(cls, text: str) -> "WireEncoding":
        kind, _, schema = text.partition(SCHEMA_SEPARATOR)
        number = IDS.get(kind)
        if number is None:
            return cls(CUSTOM_ID, text.encode()) if text else cls()
        return cls(number, schema.encode() or None)

    def with_schema(self, schema: str) -> "WireEncoding":
        """Return this type with another schema; without one if it is empty."""
        if self.id == CUSTOM_ID:
            kind = (self.schema or b"").decode(errors="replace").partition(SCHEMA_SEPARATOR)[0]
            text = f"{kind}{SCHEMA_SEPARATOR}{schema}" if schema else kind
            return WireEncoding(CUSTOM_ID, text.encode())
        return WireEncoding(self.id, schema.encode() or None)

    @property
    def type(self) -> str:
        """The text without the schema; empty for a custom encoding."""
        if self.id < len(PREDEFINED):
            return PREDEFINED[self.id]
        return "" if self.id == CUSTOM_ID else f"unknown({self.id})"

    def __str__(self) -> str:
        if self.schema is None:
            return self.type
        schema = self.schema.decode(errors="replace")
        return schema if self.id == CUSTOM_ID else f"{self.type}{SCHEMA_SEPARATOR}{schema}"

    def __repr__(self) -> str:
        return f"Encoding({self})"


DEFAULT = WireEncoding()
_PLAIN = tuple(WireEncoding(number) for number in range(len(PREDEFINED)))


def type_and_schema(number: int, schema: bytes | None) -> tuple[str, str | None]:
    """Return both as text for a table; a custom encoding has both in its schema."""
    text = None if schema is None else schema.decode(errors="replace")
    if number == CUSTOM_ID and text is not None:
        kind, separator, rest = text.partition(SCHEMA_SEPARATOR)
        return kind, rest if separator else None
    return WireEncoding(number).type, text


def read_encoding(r: ByteReader, field: str = "encoding") -> WireEncoding:
    start = r.pos
    value = r.zint(field, U32)
    number = value >> 1
    if number > U16:
        raise DecodeError(Reason.TOO_LARGE, field, start)
    if value & 1:
        return WireEncoding(number, r.block("schema", U8))
    return _PLAIN[number] if number < len(_PLAIN) else WireEncoding(number)


def write_encoding(w: ByteWriter, encoding: WireEncoding, field: str = "encoding") -> None:
    if encoding.schema is None:
        w.zint(field, encoding.id << 1)
    else:
        w.zint(field, encoding.id << 1 | 1)
        w.block("schema", encoding.schema, U8)
