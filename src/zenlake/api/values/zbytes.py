"""ZBytes: a payload or an attachment, and the types that convert to one.

Knows bytes and views of them. Does not know encodings or serialisation.
"""

from collections.abc import Mapping
from functools import total_ordering
from typing import TYPE_CHECKING, Protocol, Self, final

if TYPE_CHECKING:
    from zenlake.shm import ZShm

_SHOWN = 64
"""Upper bound on the bytes that a repr prints."""

_new = object.__new__


class Buffer(Protocol):
    """Object with a buffer, as type checkers know it: bytes, bytearray, memoryview, array, mmap."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


class ArrayBuffer(Protocol):
    """NumPy array, which type checkers know as a Buffer only from Python 3.12 on."""

    @property
    def __array_interface__(self) -> Mapping[str, object]: ...


def payload_bytes(obj: object) -> bytes | memoryview:
    """Return the bytes that `obj` stands for as a payload.

    Buffers are not copied: they must not change until the data has been sent. A bytearray is
    copied, since nothing else keeps it from changing.

    >>> payload_bytes("é"), payload_bytes(bytearray(b"x"))
    (b'\\xc3\\xa9', b'x')
    """
    if type(obj) is bytes:
        return obj
    if isinstance(obj, str):
        return obj.encode()
    if type(obj) is ZBytes:
        buffer = obj.buffer
        return buffer if type(buffer) is bytes else _to_send(buffer)
    if isinstance(obj, (bytes, bytearray)):
        return bytes(obj)
    if (shared := getattr(obj, "into_payload", None)) is not None:  # ZShm, ZShmMut.
        shared_view: memoryview = shared()
        return _to_send(shared_view)
    try:
        # memoryview decides whether it is a buffer.
        view = memoryview(obj)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"expected bytes/str type, found '{type(obj).__name__}'") from None
    if not view.c_contiguous:
        raise TypeError(
            f"expected a C-contiguous buffer, found '{type(obj).__name__}' with strides "
            f"{view.strides}; make it contiguous first"
        )
    if view.format == "B" and view.ndim == 1:
        return _to_send(view)
    return view.cast("B") if view.nbytes else b""


def kept_bytes(obj: object) -> bytes | memoryview:
    """Return the bytes that `obj` stands for as a payload that may be kept: a copy of any buffer
    that may change, but not of one in shared memory that was given away."""
    data = payload_bytes(obj)
    if isinstance(data, bytes):
        return data
    if data.readonly and hasattr(data.obj, "lease"):
        from zenlake.shm.session import own_buffer

        if own_buffer(data) is not None:
            return data
    return copied(data)


@final
@total_ordering
class ZBytes:
    """Bytes, as received or to be sent; immutable.

    >>> data = ZBytes("hé")
    >>> data.to_bytes(), str(data), len(data), data == b"h\\xc3\\xa9"
    (b'h\\xc3\\xa9', 'hé', 3, True)
    >>> bytes(data.view[1:])
    b'\\xc3\\xa9'
    """

    __slots__ = ("buffer",)

    buffer: bytes | memoryview
    "Bytes, or the view of the receive buffer."

    def __init__(self, obj: "IntoZBytes | None") -> None:
        if type(obj) is bytes:  # The common case, without a call.
            self.buffer = obj
        else:
            self.buffer = b"" if obj is None else payload_bytes(obj)

    @classmethod
    def of(cls, buffer: bytes | memoryview) -> Self:
        """Wrap `buffer`: not copied, not checked, and never to be changed."""
        self = _new(cls)
        self.buffer = buffer
        return self

    @property
    def view(self) -> memoryview:
        """Bytes as a read-only view, without a copy."""
        return memoryview(self.buffer).toreadonly()

    def to_bytes(self, /) -> bytes:
        """Return the bytes; copies only a view of a larger buffer.

        ZError: they were in shared memory, which the sender has taken back.
        """
        buffer = self.buffer
        return buffer if isinstance(buffer, bytes) else copied(buffer)

    def to_string(self, /) -> str:
        """Return the bytes as UTF-8 text. ValueError: they are not UTF-8."""
        return str(self.to_bytes(), "utf-8")

    def as_shm(self, /) -> "ZShm | None":
        """Return the payload as a buffer in shared memory; None: it is not there.

        A payload that was received through shared memory may have been copied out of it.
        """
        buffer = self.buffer
        if not isinstance(buffer, memoryview) or not hasattr(buffer.obj, "lease"):
            return None
        from zenlake.shm.provider import ZShm

        return ZShm.of(buffer)

    __bytes__ = to_bytes
    __str__ = to_string

    def __buffer__(self, flags: int) -> memoryview:
        return self.view

    def __len__(self) -> int:
        return len(self.buffer)

    def __bool__(self) -> bool:
        return len(self.buffer) != 0

    def __eq__(self, other: object) -> bool:
        if type(other) is ZBytes:
            return self.buffer == other.buffer
        if isinstance(other, str):
            return self.buffer == other.encode(errors="surrogatepass")
        if isinstance(other, (bytes, bytearray, memoryview)):
            return self.buffer == other
        return NotImplemented

    def __lt__(self, other: Self) -> bool:
        if type(other) is not ZBytes:
            return NotImplemented
        return self.to_bytes() < other.to_bytes()

    if TYPE_CHECKING:  # `total_ordering` adds them.

        def __le__(self, other: Self) -> bool: ...
        def __gt__(self, other: Self) -> bool: ...
        def __ge__(self, other: Self) -> bool: ...

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def __reduce__(self) -> tuple[type[Self], tuple[bytes]]:
        return type(self), (self.to_bytes(),)

    def __repr__(self) -> str:
        more = "..." if len(self) > _SHOWN else ""
        return f"ZBytes({bytes(self.buffer[:_SHOWN])!r}{more})"


def copied(view: memoryview) -> bytes:
    """Return a copy of `view`, whose memory another process may use again if it is shared. ZError:
    it has."""
    data = bytes(view)
    lease = getattr(view.obj, "lease", None)
    if lease is not None:
        lease.check()
    return data


def _to_send(buffer: bytes | memoryview) -> bytes | memoryview:
    """Return `buffer`, or a copy in the child of a fork, whose parent may use the memory again.
    ZError: it has, or another process has."""
    lease = getattr(getattr(buffer, "obj", None), "lease", None)
    if lease is None or (lease.is_own and lease.is_valid):
        return buffer
    assert isinstance(buffer, memoryview)
    return copied(buffer)


IntoZBytes = ZBytes | str | Buffer | ArrayBuffer
"""Payload or attachment as a caller gives it; a buffer must be C-contiguous."""
