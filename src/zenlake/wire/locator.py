"""Locator and EndPoint: where a node can be reached, as text.

Knows the grammar and its limits. Does not resolve names or open anything.

    Locator  = protocol "/" address [ "?" metadata ]
    EndPoint = Locator [ "#" config ]
    metadata, config = key "=" value *( ";" key "=" value ), keys sorted, lists split by "|"
"""

from zenlake.errors import DecodeError, InvalidLocator, Reason
from zenlake.wire.cursor import U8, ByteReader, ByteWriter

MAX_BYTES = 255  # Its length has one byte on the wire (zenoh-protocol core/endpoint.rs).


def _sorted_pairs(section: str, name: str, text: str) -> dict[str, str]:
    """Return `k=v;k=v` as a dict in key order; of a repeated key the first counts.

    A `;` without a pair beside it counts for nothing, as in Rust (core/parameters.rs).
    """
    pairs: dict[str, str] = {}
    for item in filter(None, section.split(";")):
        key, _, value = item.partition("=")
        if not key:
            raise InvalidLocator(f"{text!r}: the {name} needs key=value, not {item!r}")
        pairs.setdefault(key, value)
    if not pairs:
        raise InvalidLocator(f"{text!r}: the {name} needs key=value, not {section!r}")
    return dict(sorted(pairs.items()))


def _join(pairs: dict[str, str]) -> str:
    return ";".join(f"{key}={value}" if value else key for key, value in pairs.items())


class EndPoint(str):
    """
    >>> e = EndPoint("tcp/[::1]:7447?prio=1-3#iface=lo")
    >>> e.protocol, e.address, e.metadata, e.config
    ('tcp', '[::1]:7447', {'prio': '1-3'}, {'iface': 'lo'})
    """

    __slots__ = ()

    def __new__(cls, text: str) -> "EndPoint":
        before, hash_sign, config = text.partition("#")
        path, question, metadata = before.partition("?")
        protocol, slash, address = path.partition("/")
        if not slash or not protocol or not address:
            raise InvalidLocator(
                f"{text!r} is not an endpoint: write protocol/address, such as tcp/127.0.0.1:7447"
            )
        out = path
        if question:
            out += "?" + _join(_sorted_pairs(metadata, "metadata after '?'", text))
        if len(out.encode(errors="replace")) > MAX_BYTES:
            raise InvalidLocator(f"{text[:40]!r}... has more than {MAX_BYTES} bytes before '#'")
        if hash_sign:
            out += "#" + _join(_sorted_pairs(config, "configuration after '#'", text))
        return super().__new__(cls, out)

    @property
    def protocol(self) -> str:
        return self.partition("/")[0]

    @property
    def address(self) -> str:
        return self.partition("#")[0].partition("?")[0].partition("/")[2]

    @property
    def metadata(self) -> dict[str, str]:
        return self._section(self.partition("#")[0].partition("?")[2])

    @property
    def config(self) -> dict[str, str]:
        return self._section(self.partition("#")[2])

    def _section(self, section: str) -> dict[str, str]:
        return _sorted_pairs(section, "section", self) if section else {}

    @property
    def locator(self) -> "Locator":
        """Endpoint without its configuration, as it is sent to other nodes."""
        return Locator(self.partition("#")[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class Locator(EndPoint):
    """An endpoint without configuration.

    >>> Locator("udp/127.0.0.1:7447?rel=0").metadata
    {'rel': '0'}
    """

    __slots__ = ()

    def __new__(cls, text: str) -> "Locator":
        if "#" in text:
            raise InvalidLocator(f"{text!r} is not a locator: a locator has no '#' configuration")
        endpoint = super().__new__(cls, text)
        assert isinstance(endpoint, Locator)
        return endpoint


def read_locators(r: ByteReader, field: str) -> tuple[Locator, ...]:
    """Read a count, then as many locators."""
    return tuple(_read_locator(r, field) for _ in range(r.count(field)))


def _read_locator(r: ByteReader, field: str) -> Locator:
    start = r.pos
    text = r.text(field, U8)
    try:
        return Locator(text)
    except InvalidLocator:
        raise DecodeError(Reason.BAD_LOCATOR, field, start) from None


def write_locators(w: ByteWriter, field: str, locators: tuple[Locator, ...]) -> None:
    w.zint(field, len(locators))
    for locator in locators:
        w.text(field, locator, U8)
