"""The names of `zenoh.shm`. Layouts and policies are values without shared memory behind them.

Every request for memory raises a ZError with the remedy.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self, TypeVar, final

from zenlake.errors import ZError

T = TypeVar("T")

NO_SHM = (
    "zenlake has no shared memory: pass bytes or a memoryview to put; "
    "peers that offer shared memory are reached over the network all the same"
)
LAYOUT = "incorrect layout arguments"
MAX_POW = 63  # Largest exponent: alignments are 64-bit numbers.

__all__ = [
    "AllocAlignment",
    "BlockOn",
    "Deallocate",
    "Defragment",
    "GarbageCollect",
    "JustAlloc",
    "MemoryLayout",
    "ShmProvider",
    "ZShm",
    "ZShmMut",
]


@final
@dataclass(frozen=True, order=True)
class AllocAlignment:
    """Alignment of 2**pow bytes.

    >>> AllocAlignment(2).get_alignment_value(), AllocAlignment(2).align_size(5)
    (4, 8)
    """

    pow: int

    ALIGN_1_BYTE: ClassVar[Self]
    ALIGN_2_BYTE: ClassVar[Self]
    ALIGN_4_BYTE: ClassVar[Self]
    ALIGN_8_BYTE: ClassVar[Self]

    def __post_init__(self) -> None:
        number = operator.index(self.pow)
        if not 0 <= number <= 0xFF:
            raise OverflowError("out of range integral type conversion attempted")
        if number > MAX_POW:
            raise ZError(f"{LAYOUT}: an alignment is 2**0 to 2**{MAX_POW} bytes, not 2**{number}")

    def get_alignment_value(self, /) -> int:
        """Return the alignment in bytes."""
        return 1 << self.pow

    def align_size(self, /, size: int) -> int:
        """Return the smallest multiple of the alignment that holds `size` bytes."""
        if size < 0:
            raise OverflowError("can't convert negative int to unsigned")
        if size == 0:
            raise ValueError("invalid zero value")
        return -(-size >> self.pow) << self.pow


AllocAlignment.ALIGN_1_BYTE = AllocAlignment(0)
AllocAlignment.ALIGN_2_BYTE = AllocAlignment(1)
AllocAlignment.ALIGN_4_BYTE = AllocAlignment(2)
AllocAlignment.ALIGN_8_BYTE = AllocAlignment(3)


@final
class MemoryLayout:
    """Size, and an alignment that it is a multiple of.

    >>> layout = MemoryLayout((16, AllocAlignment.ALIGN_8_BYTE))
    >>> layout.size, layout.alignment.get_alignment_value()
    (16, 8)
    """

    __slots__ = ("_alignment", "_size")

    def __init__(self, obj: "int | tuple[int, AllocAlignment]") -> None:
        match obj:
            case int(size) if size >= 0:
                alignment = AllocAlignment.ALIGN_1_BYTE
            case (int(size), AllocAlignment() as alignment) if size >= 0:
                pass
            case _:
                raise TypeError("expected int/tuple[int, AllocAlignment]")
        if size == 0 or size % alignment.get_alignment_value():
            raise ZError(f"{LAYOUT}: {size} bytes is not a positive multiple of the alignment")
        self._size = size
        self._alignment = alignment

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self._size

    @property
    def alignment(self) -> AllocAlignment:
        """Alignment of the memory."""
        return self._alignment

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MemoryLayout):
            return NotImplemented
        return (self._size, self._alignment) == (other._size, other._alignment)

    def __hash__(self) -> int:
        return hash((self._size, self._alignment))

    def __repr__(self) -> str:
        return f"MemoryLayout(({self._size}, {self._alignment!r}))"


class _Policy:
    """Policy for the case that memory is short; checks that its fields are policies and numbers."""

    def __post_init__(self) -> None:
        for name in ("inner_policy", "alt_policy"):
            given = getattr(self, name, None)
            if given is not None and not isinstance(given, _Policy):
                raise TypeError(f"argument '{name}': expected policy type")


@final
@dataclass(frozen=True)
class JustAlloc(_Policy):
    """Try once."""


JUST_ALLOC = JustAlloc()


@final
@dataclass(frozen=True)
class BlockOn(_Policy):
    """Wait until there is memory."""

    inner_policy: _Policy | None = JUST_ALLOC


@final
@dataclass(frozen=True)
class Defragment(_Policy):
    """Try, join free pieces, try again."""

    inner_policy: _Policy | None = JUST_ALLOC
    alt_policy: _Policy | None = JUST_ALLOC


@final
@dataclass(frozen=True)
class GarbageCollect(_Policy):
    """Try, collect unused memory, try again."""

    inner_policy: _Policy | None = JUST_ALLOC
    alt_policy: _Policy | None = JUST_ALLOC
    safe: bool = True


@final
@dataclass(frozen=True)
class Deallocate(_Policy):
    """Try, take up to `limit` buffers from their users, try again."""

    limit: int
    inner_policy: _Policy | None = JUST_ALLOC
    alt_policy: _Policy | None = JUST_ALLOC

    def __post_init__(self) -> None:
        if operator.index(self.limit) < 0:
            raise OverflowError("can't convert negative int to unsigned")
        super().__post_init__()


def _refusing(_kind: type[T]) -> Callable[[object], T]:
    """Return a method that raises ZError where one with shared memory returns a `_kind`."""

    def refuse(self: object, /) -> T:
        """Raise ZError: there is no shared memory."""
        raise ZError(NO_SHM)

    return refuse


@final
class ShmProvider:
    """Provider of shared memory: every use is a ZError with the remedy.

    >>> ShmProvider.default_backend(1024)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    zenlake.errors.ZError: zenlake has no shared memory: pass bytes or a memoryview to put; ...
    """

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        raise ZError(NO_SHM)

    @classmethod
    def default_backend(cls, layout: "MemoryLayout | tuple[int, AllocAlignment] | int") -> Self:
        """Raise ZError: there is no shared memory."""
        raise ZError(NO_SHM)

    def alloc(
        self,
        /,
        layout: "MemoryLayout | tuple[int, AllocAlignment] | int",
        policy: _Policy = JUST_ALLOC,
    ) -> "ZShmMut":
        """Raise ZError: there is no shared memory."""
        raise ZError(NO_SHM)

    defragment = _refusing(type(None))
    garbage_collect = garbage_collect_unsafe = _refusing(int)

    @property
    def available(self) -> int:
        """Raise ZError: there is no shared memory."""
        raise ZError(NO_SHM)


@final
class ZShm:
    """Buffer in shared memory, which cannot be made."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        raise ZError(NO_SHM)

    is_valid = _refusing(bool)
    __bytes__ = _refusing(bytes)
    __str__ = _refusing(str)

    def __buffer__(self, flags: int, /) -> memoryview:
        raise ZError(NO_SHM)


@final
class ZShmMut:
    """Writable buffer in shared memory, which cannot be made."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        raise ZError(NO_SHM)

    __bytes__ = _refusing(bytes)
    __str__ = _refusing(str)

    def __buffer__(self, flags: int, /) -> memoryview:
        raise ZError(NO_SHM)

    def __setitem__(self, item: int | slice, value: int | bytes | bytearray) -> None:
        raise ZError(NO_SHM)
