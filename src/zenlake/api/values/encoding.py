"""Encoding: media type of a payload, with an optional schema.

Knows the predefined names; `wire/encoding.py` knows their numbers and bytes. Does not decode
payloads.
"""

import re
from collections.abc import Callable
from typing import ClassVar, Self, final

from zenlake.api.values.wrapped import Wrapped
from zenlake.errors import ZError
from zenlake.wire import encoding as codec


@final
class Encoding(Wrapped[codec.WireEncoding]):
    """Media type `type/subtype` or `type/subtype;schema`; equal to its text, with an equal hash.

    >>> Encoding("text/plain;utf-8") == "text/plain;utf-8"
    True
    >>> Encoding.APPLICATION_JSON.with_schema("fleet.Pose")
    Encoding('application/json;fleet.Pose')
    """

    __slots__ = ()

    ZENOH_BYTES: ClassVar["Encoding"]
    ZENOH_STRING: ClassVar["Encoding"]
    ZENOH_SERIALIZED: ClassVar["Encoding"]
    APPLICATION_OCTET_STREAM: ClassVar["Encoding"]
    TEXT_PLAIN: ClassVar["Encoding"]
    APPLICATION_JSON: ClassVar["Encoding"]
    TEXT_JSON: ClassVar["Encoding"]
    APPLICATION_CDR: ClassVar["Encoding"]
    APPLICATION_CBOR: ClassVar["Encoding"]
    APPLICATION_YAML: ClassVar["Encoding"]
    TEXT_YAML: ClassVar["Encoding"]
    TEXT_JSON5: ClassVar["Encoding"]
    APPLICATION_PYTHON_SERIALIZED_OBJECT: ClassVar["Encoding"]
    APPLICATION_PROTOBUF: ClassVar["Encoding"]
    APPLICATION_JAVA_SERIALIZED_OBJECT: ClassVar["Encoding"]
    APPLICATION_OPENMETRICS_TEXT: ClassVar["Encoding"]
    IMAGE_PNG: ClassVar["Encoding"]
    IMAGE_JPEG: ClassVar["Encoding"]
    IMAGE_GIF: ClassVar["Encoding"]
    IMAGE_BMP: ClassVar["Encoding"]
    IMAGE_WEBP: ClassVar["Encoding"]
    APPLICATION_XML: ClassVar["Encoding"]
    APPLICATION_X_WWW_FORM_URLENCODED: ClassVar["Encoding"]
    TEXT_HTML: ClassVar["Encoding"]
    TEXT_XML: ClassVar["Encoding"]
    TEXT_CSS: ClassVar["Encoding"]
    TEXT_JAVASCRIPT: ClassVar["Encoding"]
    TEXT_MARKDOWN: ClassVar["Encoding"]
    TEXT_CSV: ClassVar["Encoding"]
    APPLICATION_SQL: ClassVar["Encoding"]
    APPLICATION_COAP_PAYLOAD: ClassVar["Encoding"]
    APPLICATION_JSON_PATCH_JSON: ClassVar["Encoding"]
    APPLICATION_JSON_SEQ: ClassVar["Encoding"]
    APPLICATION_JSONPATH: ClassVar["Encoding"]
    APPLICATION_JWT: ClassVar["Encoding"]
    APPLICATION_MP4: ClassVar["Encoding"]
    APPLICATION_SOAP_XML: ClassVar["Encoding"]
    APPLICATION_YANG: ClassVar["Encoding"]
    AUDIO_AAC: ClassVar["Encoding"]
    AUDIO_FLAC: ClassVar["Encoding"]
    AUDIO_MP4: ClassVar["Encoding"]
    AUDIO_OGG: ClassVar["Encoding"]
    AUDIO_VORBIS: ClassVar["Encoding"]
    VIDEO_H261: ClassVar["Encoding"]
    VIDEO_H263: ClassVar["Encoding"]
    VIDEO_H264: ClassVar["Encoding"]
    VIDEO_H265: ClassVar["Encoding"]
    VIDEO_H266: ClassVar["Encoding"]
    VIDEO_MP4: ClassVar["Encoding"]
    VIDEO_OGG: ClassVar["Encoding"]
    VIDEO_RAW: ClassVar["Encoding"]
    VIDEO_VP8: ClassVar["Encoding"]
    VIDEO_VP9: ClassVar["Encoding"]

    def __new__(cls, s: str | None) -> Self:
        if s is not None and not isinstance(s, str):
            raise TypeError(f"an encoding is text, not {type(s).__name__}")
        known = _BY_TEXT.get(s or "")
        if known is None:
            return cls.of(_checked(codec.WireEncoding.parse, s or ""))
        return known

    @classmethod
    def of(cls, wire: codec.WireEncoding) -> Self:
        """Return the API object for `wire`; for a predefined one without schema always the same
        object.
        """
        if wire.schema is None and wire.id < len(_PLAIN):
            return _PLAIN[wire.id]
        return super().of(wire)

    def with_schema(self, /, schema: str) -> Self:
        """Return this type with another schema.

        >>> str(Encoding("text/plain;a").with_schema("b"))
        'text/plain;b'
        """
        if not isinstance(schema, str):
            raise TypeError(f"a schema is text, not {type(schema).__name__}")
        return self.of(_checked(self.wire.with_schema, schema))

    def _key(self) -> str:
        return str(self.wire)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return super().__eq__(other)
        try:
            return self._key() == Encoding(other)._key()
        except ZError:
            return False

    __hash__ = Wrapped.__hash__

    def __repr__(self) -> str:
        return f"Encoding({str(self)!r})"


IntoEncoding = Encoding | str


def _checked(make: Callable[[str], codec.WireEncoding], text: str) -> codec.WireEncoding:
    try:
        return make(text)
    except ValueError as error:
        raise ZError(f"encoding {text[:80]!r}: {error}") from None


_PLAIN: tuple[Encoding, ...] = ()
for _number, _text in enumerate(codec.PREDEFINED):
    _PLAIN = (*_PLAIN, Encoding.of(codec.WireEncoding(_number)))
    setattr(Encoding, re.sub(r"[^a-z0-9]", "_", _text).upper(), _PLAIN[-1])
_BY_TEXT: dict[str, Encoding] = {"": _PLAIN[0], **{str(plain): plain for plain in _PLAIN}}
