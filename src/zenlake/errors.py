"""All errors that zenlake raises, in one tree.

ZError
├── DecodeError       bytes that are not what the protocol says (message, field, offset, reason)
├── EncodeError       a message that cannot be put on the wire (a field out of its range)
│   └── MessageTooLarge   a message that is larger than what a session can carry
├── ClockDrift        a timestamp too far ahead of the local clock (hlc.py)
├── InvalidKeyExpr    text that is not a key expression; also a ValueError
├── InvalidLocator    text that is not a locator or endpoint; also a ValueError
├── LinkError         a link that could not be opened, or broke; names the endpoint
├── AuthError         credentials that are missing or wrong, or a file of them that cannot be used
└── SessionEnded      a session that ended: why, the CLOSE reason, and on which side
    ├── SessionRefused    a handshake that ended without a session
    └── SessionClosed     a session that was open
        └── NeighbourLimit    closed by this node: the neighbour exceeded a limit
"""

from enum import IntEnum
from typing import Self


class ZError(Exception):
    """Base of all errors that zenlake raises."""


class Reason(IntEnum):
    """Reason for which bytes do not decode, shared by the kernels and the object codec.

    `text` says it in words.
    """

    text: str

    def __new__(cls, number: int, text: str = "") -> "Reason":
        member = int.__new__(cls, number)
        member._value_ = number
        member.text = text
        return member

    NONE = 0, "no error"
    CUT_SHORT = 1, "the bytes end before the field does"
    TOO_LARGE = 2, "the integer is above the field's bound"
    BAD_UTF8 = 3, "the text is not UTF-8"
    UNKNOWN_ID = 4, "no message has this id here"
    MANDATORY_EXTENSION = 5, "the extension is mandatory and not known here"
    EXTENSION_ENCODING = 6, "the encoding bits 11 mean nothing"
    TOO_MANY_EXTENSIONS = 7, "the chain of extensions is longer than 32"
    BAD_ZENOH_ID = 8, "a Zenoh id is 1 to 16 bytes and not zero"
    BAD_VALUE = 9, "the value has no meaning for this field"
    TRAILING_BYTES = 10, "bytes are left over after the field's content"
    SHARED_MEMORY = 11, "the payload is in shared memory, which was not negotiated"
    BAD_LOCATOR = 12, "the text is not a locator"
    BATCH_CUT_SHORT = 13, "the stream ends inside a batch"
    BAD_COMPRESSION = 14, "the batch is not the LZ4 block that its header announces"


class DecodeError(ZError):
    """Bytes that do not decode.

    `message` is the path of message names ("PUSH.PUT"), `field` the field that failed, `offset`
    the position of its first byte in the buffer that was read.
    """

    def __init__(self, reason: Reason, field: str, offset: int, message: str = "") -> None:
        super().__init__(reason, field, offset, message)
        self.reason = reason
        self.field = field
        self.offset = offset
        self.message = message

    def within(self, message: str) -> "DecodeError":
        """Add the name of the message around the one that failed; return the error."""
        self.message = f"{message}.{self.message}" if self.message else message
        self.args = (self.reason, self.field, self.offset, self.message)
        return self

    def __str__(self) -> str:
        where = f"{self.message}: {self.field}" if self.message else self.field
        return f"{where} at byte {self.offset}: {self.reason.text}"


class EncodeError(ZError):
    """A message that cannot be written: `field` of `message` is out of its range."""

    def __init__(self, problem: str, field: str, message: str = "") -> None:
        super().__init__(problem, field, message)
        self.problem = problem
        self.field = field
        self.message = message

    def within(self, message: str) -> Self:
        """Add the name of the message around the one that failed; return the error."""
        self.message = f"{message}.{self.message}" if self.message else message
        self.args = (self.problem, self.field, self.message)
        return self

    def __str__(self) -> str:
        where = f"{self.message}: {self.field}" if self.message else self.field
        return f"{where} {self.problem}"


class MessageTooLarge(EncodeError):
    """A message that is larger than what a session can carry; other sessions may have taken it."""


class ClockDrift(ZError):
    """A timestamp is further ahead of the local clock than the limit allows."""


class InvalidKeyExpr(ZError, ValueError):
    """Text that is not a key expression; the message says what to write instead."""


class InvalidLocator(ZError, ValueError):
    """Text that is not a locator or endpoint; the message says what is wrong."""


class LinkError(ZError, OSError):
    """A link that could not be opened, or broke; the message names the endpoint and the cause."""


class AuthError(ZError):
    """Credentials that are missing or wrong, or a file of them that cannot be used."""


class SessionEnded(ZError):
    """The end of a session: `why` in words, CLOSE's code as `reason`, and whether `by_peer`."""

    def __init__(self, why: str, reason: int, by_peer: bool = False) -> None:
        super().__init__(why, reason, by_peer)
        self.why = why
        self.reason = reason
        self.by_peer = by_peer

    def __str__(self) -> str:
        return self.why


class SessionRefused(SessionEnded):
    """A handshake that ended without a session."""


class SessionClosed(SessionEnded):
    """A session that was open and has ended."""


class NeighbourLimit(SessionClosed):
    """A session that this node closes because its neighbour exceeded a limit, which `why` names."""
