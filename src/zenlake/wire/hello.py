"""HELLO: a node's identity and where it listens, in answer to SCOUT. Knows the bytes."""

from dataclasses import dataclass

from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.extensions import ExtensionTable, Unknown
from zenlake.wire.init import VERSION, read_identity, write_identity
from zenlake.wire.locator import Locator, read_locators, write_locators
from zenlake.wire.zenohid import WireZenohId

ID = 0x02
FLAG_LOCATORS = 0x20

EXTENSIONS = ExtensionTable("HELLO")  # none is defined


@dataclass(slots=True)
class WireHello:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|X|L|   0x02  |   L: locators follow   Z: extensions
    +-+-+-+---------+
    |    version    |
    |zid_len|X|X|WAI|
    ~      zid      ~
    ~   locators    ~   if L: a count, then <u8> texts
    ~ [extensions]  ~   if Z
    +---------------+
    """

    zid: WireZenohId
    whatami: WireWhatAmI
    locators: tuple[Locator, ...] = ()
    version: int = VERSION
    extensions: tuple[Unknown, ...] = ()


def read_hello(r: ByteReader, header: int) -> WireHello:
    version = r.u8("version")
    zid, whatami = read_identity(r)
    hello = WireHello(zid, whatami, version=version)
    if header & FLAG_LOCATORS:
        hello.locators = read_locators(r, "locators")
    EXTENSIONS.read(r, header, hello)
    return hello


def write_hello(w: ByteWriter, hello: WireHello) -> None:
    start = len(w.out)
    w.out.append(ID)
    w.u8("version", hello.version)
    write_identity(w, hello.zid, hello.whatami)
    if hello.locators:
        w.out[start] |= FLAG_LOCATORS
        write_locators(w, "locators", hello.locators)
    EXTENSIONS.write(w, hello, start)
