"""Layouts of shared memory, and the policies for the case that it is short: values, no memory.

The names and checks are those of `zenoh.shm`. provider.py carries the policies out.
"""

import operator
from dataclasses import dataclass
from typing import ClassVar, Self, final

from zenlake.errors import ZError

LAYOUT = "incorrect layout arguments"
MAX_POW = 63  # Largest exponent: alignments are 64-bit numbers.
MAX_SIZE = (1 << 64) - 1  # Largest size: also a 64-bit number.


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
        object.__setattr__(self, "pow", number)

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
            case tuple((number, AllocAlignment() as alignment)):
                pass
            case number:
                alignment = AllocAlignment.ALIGN_1_BYTE
        try:
            size = operator.index(number)
        except TypeError:
            size = -1
        if not 0 <= size <= MAX_SIZE:
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


class AllocPolicy:
    """Policy for the case that memory is short; checks that its fields are policies and numbers."""

    def __post_init__(self) -> None:
        for name in ("inner_policy", "alt_policy"):
            given = getattr(self, name, None)
            if given is not None and not isinstance(given, AllocPolicy):
                raise TypeError(f"argument '{name}': expected policy type")


@final
@dataclass(frozen=True)
class JustAlloc(AllocPolicy):
    """Try once."""


JUST_ALLOC = JustAlloc()


@final
@dataclass(frozen=True)
class BlockOn(AllocPolicy):
    """Wait until there is memory."""

    inner_policy: AllocPolicy | None = JUST_ALLOC


@final
@dataclass(frozen=True)
class Defragment(AllocPolicy):
    """Try, join free pieces, try again."""

    inner_policy: AllocPolicy | None = JUST_ALLOC
    alt_policy: AllocPolicy | None = JUST_ALLOC


@final
@dataclass(frozen=True)
class GarbageCollect(AllocPolicy):
    """Try, collect unused memory, try again."""

    inner_policy: AllocPolicy | None = JUST_ALLOC
    alt_policy: AllocPolicy | None = JUST_ALLOC
    safe: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.safe, bool):
            raise TypeError("argument 'safe': expected a bool")
        super().__post_init__()


@final
@dataclass(frozen=True)
class Deallocate(AllocPolicy):
    """Try, take up to `limit` buffers from their users, try again: from other processes, and from
    this one, where they raise ZError then."""

    limit: int
    inner_policy: AllocPolicy | None = JUST_ALLOC
    alt_policy: AllocPolicy | None = JUST_ALLOC

    def __post_init__(self) -> None:
        if operator.index(self.limit) < 0:
            raise OverflowError("can't convert negative int to unsigned")
        super().__post_init__()


IntoMemoryLayout = MemoryLayout | tuple[int, AllocAlignment] | int


def layout_of(layout: IntoMemoryLayout) -> MemoryLayout:
    """Return `layout` as a MemoryLayout. TypeError, ZError: it is not one."""
    return layout if isinstance(layout, MemoryLayout) else MemoryLayout(layout)
