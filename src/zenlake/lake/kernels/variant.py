"""JSON texts to Spark's VARIANT, compiled: the bytes that Spark's `try_parse_json` makes of them.

Knows objects, arrays and names of a VARIANT (parquet-format, VariantEncoding.md), as
VariantBuilder.java of Spark writes them; json_values.py writes all other values. Decimal fractions
that need more than one rounding are not converted here: the kernel reports where they stand
(`hard`), and takes them as numbers (`known`) when it is called again.

Work and memory are proportional to the text: names are found by hashing, and sorted in n log n
steps. Numbers are kept in byte buffers, for the reason that wire/kernels/memory.py has.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from zenlake.lake.kernels.json_values import (
    BAD,
    COLON,
    COMMA,
    HARD,
    OPEN_ARRAY,
    OPEN_OBJECT,
    QUOTE,
    plain_length,
    skip_space,
    unescape,
    write_double,
    write_int,
    write_scalar,
)
from zenlake.wire.kernels.memory import (
    copy_bytes,
    load8,
    load64,
    mix,
    pointer_to,
    store8,
    store64,
)

# Limits of Spark's parser (StreamReadConstraints of Jackson) and of VariantBuilder.java.
MAX_DEPTH = 1000
MAX_NAME_BYTES = 50_000
MAX_VARIANT_BYTES = 128 << 20

# Verdict on a text. TRAILING: a value, and further text after it, which Spark does not look at.
# PENDING: hard numbers in it are not known yet.
REFUSED, TAKEN, TRAILING, PENDING = range(4)

# Upper bounds on the bytes that a byte of text can become, and on what a row needs in addition.
VALUE_GROWTH, METADATA_GROWTH, ROW_BYTES = 6, 2, 32

WORD = 8  # Bytes of an entry in a scratch buffer.
HARD_WORDS = 2  # Entries per hard number: start and end of its text.
_CONTAINER_WORDS = 3  # Entries per open container: its bracket, first field and start.

_OBJECT, _ARRAY = 2, 3
_MAX_SMALL_COUNT = 255  # Fields of a container whose count takes one byte.
_METADATA_VERSION = 1
_INSERTION = 12  # Fields up to which an object is sorted by insertion.


class Scratch(NamedTuple):
    """Buffers that a row uses."""

    fields: npt.NDArray[np.uint8]
    "Per field of an open container: the number of its name, and its offset."
    containers: npt.NDArray[np.uint8]
    names: npt.NDArray[np.uint8]
    "Per distinct name of the row: its end in `name_bytes`, and its slot."
    name_bytes: npt.NDArray[np.uint8]
    slots: npt.NDArray[np.uint8]
    "Hash table: number of a name + 1, or 0."

    @classmethod
    def sized_for(cls, longest: int) -> "Scratch":
        """Return buffers for texts of up to `longest` bytes."""
        # A value and a comma take two bytes; the first field of a container only its bracket.
        fields = longest // 2 + MAX_DEPTH + 2
        names = longest // 4 + 2  # Two quotes, a colon and a value take four.
        slots = 16
        while slots < 2 * names:
            slots *= 2
        return cls(
            np.empty(2 * WORD * fields, np.uint8),
            np.empty(_CONTAINER_WORDS * WORD * MAX_DEPTH, np.uint8),
            np.empty(2 * WORD * names, np.uint8),
            np.empty(longest + WORD, np.uint8),
            np.zeros(WORD * slots, np.uint8),
        )


class VariantColumn(NamedTuple):
    """Bytes of the variants of some rows, and where those of each row end."""

    value: npt.NDArray[np.uint8]
    value_ends: npt.NDArray[np.int32]
    metadata: npt.NDArray[np.uint8]
    metadata_ends: npt.NDArray[np.int32]


# ---- bytes


@njit(cache=True, inline="always")
def _bytes_needed(value):
    """Return the bytes of an unsigned integer: 1 to 4."""
    return 1 + (value > 0xFF) + (value > 0xFFFF) + (value > 0xFF_FFFF)


@njit(cache=True, inline="always")
def _entry(buffer, number):
    """Return entry `number` of a scratch buffer."""
    return np.int64(load64(buffer, number * WORD))


@njit(cache=True, inline="always")
def _set_entry(buffer, number, value):
    store64(buffer, number * WORD, np.uint64(value))


@njit(cache=True, inline="always")
def _move_up(out, start, size, by):
    """Move out[start:start + size] up by `by` bytes; eight bytes at a time from the end."""
    at = start + size
    while at - start >= 8:
        at -= 8
        store64(out, at + by, load64(out, at))
    while at > start:
        at -= 1
        store8(out, at + by, load8(out, at))


# ---- names


@njit(cache=True)
def _find_name(names, name_bytes, slots, mask, count, start, end, seed):
    """Return the number of the name in name_bytes[start:end]; `count` if it is new, and entered."""
    length = end - start
    hashed = mix(seed ^ np.uint64(length))
    i = 0
    while i + 8 <= length:
        hashed = mix(hashed ^ load64(name_bytes, start + i))
        i += 8
    while i < length:
        hashed = mix(hashed ^ np.uint64(load8(name_bytes, start + i)))
        i += 1
    slot = hashed & mask
    while True:
        number = _entry(slots, np.int64(slot)) - 1
        if number < 0:
            _set_entry(slots, np.int64(slot), count + 1)
            _set_entry(names, 2 * count, end)
            _set_entry(names, 2 * count + 1, np.int64(slot))
            return count
        other = _entry(names, 2 * (number - 1)) if number else 0
        if _entry(names, 2 * number) - other == length:
            i = 0
            while i < length and load8(name_bytes, other + i) == load8(name_bytes, start + i):
                i += 1
            if i == length:
                return number
        slot = (slot + np.uint64(1)) & mask


@njit(cache=True)
def _is_before(names, name_bytes, first, other):
    """Return whether a name is before another in the order of UTF-16 units, as in Java."""
    at = _entry(names, 2 * (first - 1)) if first else 0
    to = _entry(names, 2 * (other - 1)) if other else 0
    length = _entry(names, 2 * first) - at
    other_length = _entry(names, 2 * other) - to
    for i in range(min(length, other_length)):
        a = load8(name_bytes, at + i)
        b = load8(name_bytes, to + i)
        if a != b:
            # A surrogate pair (F0 to F4 in UTF-8) is before U+E000 to U+FFFF (EE and EF).
            if a >= 0xEE and b >= 0xEE and (a >= 0xF0) != (b >= 0xF0):
                return a > b
            return a < b
    return length < other_length


@njit(cache=True)
def _sift_down(fields, names, name_bytes, first, root, count):
    """Restore the heap of fields[first:first + count] below `root`."""
    number, offset = _entry(fields, 2 * (first + root)), _entry(fields, 2 * (first + root) + 1)
    while True:
        child = 2 * root + 1
        if child >= count:
            break
        if child + 1 < count and _is_before(
            names,
            name_bytes,
            _entry(fields, 2 * (first + child)),
            _entry(fields, 2 * (first + child + 1)),
        ):
            child += 1
        largest = _entry(fields, 2 * (first + child))
        if not _is_before(names, name_bytes, number, largest):
            break
        _set_entry(fields, 2 * (first + root), largest)
        _set_entry(fields, 2 * (first + root) + 1, _entry(fields, 2 * (first + child) + 1))
        root = child
    _set_entry(fields, 2 * (first + root), number)
    _set_entry(fields, 2 * (first + root) + 1, offset)


@njit(cache=True)
def _sort_fields(fields, names, name_bytes, first, count):
    """Sort the fields of an object by their names."""
    if count <= _INSERTION:
        for i in range(first + 1, first + count):
            number, offset = _entry(fields, 2 * i), _entry(fields, 2 * i + 1)
            j = i - 1
            while j >= first and _is_before(names, name_bytes, number, _entry(fields, 2 * j)):
                _set_entry(fields, 2 * j + 2, _entry(fields, 2 * j))
                _set_entry(fields, 2 * j + 3, _entry(fields, 2 * j + 1))
                j -= 1
            _set_entry(fields, 2 * j + 2, number)
            _set_entry(fields, 2 * j + 3, offset)
        return
    for root in range(count // 2 - 1, -1, -1):
        _sift_down(fields, names, name_bytes, first, root, count)
    for last in range(count - 1, 0, -1):
        for word in range(2):
            swapped = _entry(fields, 2 * first + word)
            _set_entry(fields, 2 * first + word, _entry(fields, 2 * (first + last) + word))
            _set_entry(fields, 2 * (first + last) + word, swapped)
        _sift_down(fields, names, name_bytes, first, 0, last)


# ---- objects, arrays and metadata


@njit(cache=True)
def _finish_object(out, start, to, fields, names, name_bytes, first, count):
    """Write the header of an object before its values; return its end, or -1 for a name twice."""
    _sort_fields(fields, names, name_bytes, first, count)
    top = 0
    for i in range(first, first + count):
        number = _entry(fields, 2 * i)
        if i > first and number == _entry(fields, 2 * i - 2):
            return -1
        top = max(top, number)
    size = to - start
    is_large = count > _MAX_SMALL_COUNT
    number_size, offset_size = _bytes_needed(top), _bytes_needed(size)
    count_size = 4 if is_large else 1
    head = 1 + count_size + count * number_size + (count + 1) * offset_size
    _move_up(out, start, size, head)
    kind = is_large << 6 | (number_size - 1) << 4 | (offset_size - 1) << 2 | _OBJECT
    store8(out, start, kind)
    at = write_int(out, start + 1, count, count_size)
    for i in range(first, first + count):
        at = write_int(out, at, _entry(fields, 2 * i), number_size)
    for i in range(first, first + count):
        at = write_int(out, at, _entry(fields, 2 * i + 1), offset_size)
    write_int(out, at, size, offset_size)
    return to + head


@njit(cache=True)
def _finish_array(out, start, to, fields, first, count):
    """Write the header of an array before its values; return its end."""
    size = to - start
    is_large = count > _MAX_SMALL_COUNT
    offset_size = _bytes_needed(size)
    count_size = 4 if is_large else 1
    head = 1 + count_size + (count + 1) * offset_size
    _move_up(out, start, size, head)
    store8(out, start, is_large << 4 | (offset_size - 1) << 2 | _ARRAY)
    at = write_int(out, start + 1, count, count_size)
    for i in range(first, first + count):
        at = write_int(out, at, _entry(fields, 2 * i + 1), offset_size)
    write_int(out, at, size, offset_size)
    return to + head


@njit(cache=True)
def _write_metadata(out, to, names, name_bytes, count):
    """Write the names of a row in the order in which they were met; return the end."""
    size = _entry(names, 2 * (count - 1)) if count else 0
    width = _bytes_needed(max(size, count))
    store8(out, to, _METADATA_VERSION | (width - 1) << 6)
    to = write_int(out, to + 1, count, width)
    to = write_int(out, to, 0, width)
    for number in range(count):
        to = write_int(out, to, _entry(names, 2 * number), width)
    copy_bytes(out, to, name_bytes, 0, size)
    return to + size


# ---- a text


@njit(cache=True, inline="always")
def _copy_name(text, at, end, name_bytes, to):
    """Copy the name that starts at `at`; return (after its colon or -1, end in `name_bytes`)."""
    if load8(text, at) != QUOTE:
        return -1, to
    length = plain_length(text, at + 1, end)
    if length >= 0:
        copy_bytes(name_bytes, to, text, at + 1, length)
        at += length + 2
        stop = to + length
    else:
        at, stop = unescape(text, at + 1, end, name_bytes, to)
        if at < 0:
            return -1, to
    at = skip_space(text, at, end)
    if stop - to > MAX_NAME_BYTES or at >= end or load8(text, at) != COLON:
        return -1, to
    return at + 1, stop


@njit(cache=True)
def _write_text(
    text,
    at,
    end,
    out,
    start,
    fields,
    containers,
    names,
    name_bytes,
    slots,
    mask,
    seed,
    known,
    known_used,
    known_count,
    hard,
    hard_used,
):
    """Write the value of one text; return (verdict, its end, names, known used, hard numbers).

    All buffers are pointers.
    """
    to = start
    depth, field, count, name_end = 0, 0, 0, 0
    is_value = True  # Whether a value is expected at `at`; else a comma or a closing bracket.
    while True:
        at = skip_space(text, at, end)
        if not is_value and not depth:
            return TAKEN if at == end else TRAILING, to, count, known_used, hard_used
        if at >= end:
            break
        byte = load8(text, at)
        is_first = False
        if is_value and byte != OPEN_OBJECT and byte != OPEN_ARRAY:
            number = at
            at, to, result = write_scalar(text, at, end, out, to, not depth)
            if result == BAD:
                break
            if result == HARD and known_used < known_count:
                to = write_double(out, to, load64(known, known_used * WORD))
                known_used += 1
            elif result == HARD:
                _set_entry(hard, HARD_WORDS * hard_used, number)
                _set_entry(hard, HARD_WORDS * hard_used + 1, at)
                hard_used += 1
            is_value = False
            continue
        if is_value:
            if depth == MAX_DEPTH:
                break
            _set_entry(containers, _CONTAINER_WORDS * depth, byte)
            _set_entry(containers, _CONTAINER_WORDS * depth + 1, field)
            _set_entry(containers, _CONTAINER_WORDS * depth + 2, to)
            depth += 1
            is_value, is_first = False, True
            at = skip_space(text, at + 1, end)
            if at >= end:
                break
            byte = load8(text, at)
        bracket = _entry(containers, _CONTAINER_WORDS * (depth - 1))
        begun = _entry(containers, _CONTAINER_WORDS * (depth - 1) + 2)
        if byte == bracket + 2:
            opened = _entry(containers, _CONTAINER_WORDS * (depth - 1) + 1)
            if bracket == OPEN_OBJECT:
                to = _finish_object(
                    out, begun, to, fields, names, name_bytes, opened, field - opened
                )
                if to < 0:
                    break
            else:
                to = _finish_array(out, begun, to, fields, opened, field - opened)
            field = opened
            depth -= 1
            at += 1
            continue
        if not is_first:
            if byte != COMMA:
                break
            at = skip_space(text, at + 1, end)
            if at >= end:
                break
        name = 0
        if bracket == OPEN_OBJECT:
            at, stop = _copy_name(text, at, end, name_bytes, name_end)
            if at < 0:
                break
            name = _find_name(names, name_bytes, slots, mask, count, name_end, stop, seed)
            if name == count:
                count += 1
                name_end = stop
        _set_entry(fields, 2 * field, name)
        _set_entry(fields, 2 * field + 1, to - begun)
        field += 1
        is_value = True
    return REFUSED, start, count, known_used, hard_used


@njit(cache=True, nogil=True)
def variant_kernel(texts, ends, wanted, seed, scratch, out, known, hard, verdicts):
    """Write the variants of rows; return (rows done, known numbers used, hard numbers found).

    Row r is texts[ends[r]:ends[r + 1]], valid UTF-8, and is left out unless wanted[r]. Stops
    before a row for which `out` or `hard` has no room. `known` are the hard numbers, in order, as
    the bytes of doubles; without them each is entered into `hard`, and its row is PENDING.
    """
    text, fields = pointer_to(texts), pointer_to(scratch.fields)
    containers, names = pointer_to(scratch.containers), pointer_to(scratch.names)
    name_bytes, slots = pointer_to(scratch.name_bytes), pointer_to(scratch.slots)
    mask = np.uint64(len(scratch.slots) // WORD - 1)
    value, metadata = pointer_to(out.value), pointer_to(out.metadata)
    value_ends, metadata_ends = out.value_ends, out.metadata_ends
    known_numbers, known_count, known_used = pointer_to(known), len(known) // WORD, 0
    hard_numbers, hard_room, hard_used = pointer_to(hard), len(hard) // WORD // HARD_WORDS, 0
    row = 0
    while row < len(ends) - 1:
        start, meta = np.int64(value_ends[row]), np.int64(metadata_ends[row])
        value_ends[row + 1], metadata_ends[row + 1] = start, meta
        verdicts[row] = REFUSED
        if not wanted[row]:
            row += 1
            continue
        at, end = np.int64(ends[row]), np.int64(ends[row + 1])
        size = end - at
        if (
            start + VALUE_GROWTH * size + ROW_BYTES > len(out.value)
            or meta + METADATA_GROWTH * size + ROW_BYTES > len(out.metadata)
            or hard_used + size // 3 + 1 > hard_room
        ):
            break
        verdict, stop, count, known_used, found = _write_text(
            text,
            at,
            end,
            value,
            start,
            fields,
            containers,
            names,
            name_bytes,
            slots,
            mask,
            seed,
            known_numbers,
            known_used,
            known_count,
            hard_numbers,
            hard_used,
        )
        for number in range(count):
            _set_entry(slots, _entry(names, 2 * number + 1), 0)
        if verdict != REFUSED and found > hard_used:
            hard_used = found
            verdict = PENDING
        elif verdict != REFUSED:
            meta_stop = _write_metadata(metadata, meta, names, name_bytes, count)
            if max(stop - start, meta_stop - meta) > MAX_VARIANT_BYTES:
                verdict = REFUSED
            else:
                value_ends[row + 1], metadata_ends[row + 1] = stop, meta_stop
        verdicts[row] = verdict
        row += 1
    return row, known_used, hard_used
