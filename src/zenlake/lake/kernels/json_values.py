"""Values of JSON that hold no others, compiled: texts, numbers and literals, written as VARIANT.

Knows JSON as Spark's parser reads it (Jackson, with its limits) and the primitive types of a
VARIANT (parquet-format, VariantEncoding.md), chosen as VariantBuilder.java of Spark chooses them.
Does not know objects and arrays.
"""

import numpy as np
from numba import njit

from zenlake.wire.kernels.memory import copy_bytes, load8, store8, store64

MAX_NUMBER_DIGITS = 1000  # Limit of Jackson (StreamReadConstraints).

# What became of a value. HARD: a number that needs more than one rounding, left to the caller.
BAD, WRITTEN, HARD = range(3)

QUOTE, COMMA, COLON = ord('"'), ord(","), ord(":")
OPEN_OBJECT, OPEN_ARRAY = ord("{"), ord("[")  # The closing bracket of each is its code + 2.
_BACKSLASH = ord("\\")
_ZERO, _NINE, _MINUS, _PLUS, _DOT = ord("0"), ord("9"), ord("-"), ord("+"), ord(".")
_EXPONENT, _LOWER = ord("e"), 0x20
_SPACE, _TAB, _NEWLINE, _RETURN = ord(" "), ord("\t"), ord("\n"), ord("\r")
_LITERALS = np.frombuffer(b"truefalsenull", np.uint8)
_TRUE_AT, _FALSE_AT, _NULL_AT = (0, 4), (4, 5), (9, 4)  # Start and length in _LITERALS.

_NULL, _TRUE, _FALSE = 0, 1 << 2, 2 << 2
_INT8, _INT16, _INT32, _INT64, _DOUBLE = 3 << 2, 4 << 2, 5 << 2, 6 << 2, 7 << 2
_DECIMAL4, _DECIMAL8, _DECIMAL16, _LONG_STRING = 8 << 2, 9 << 2, 10 << 2, 16 << 2
_SHORT_STRING, _MAX_SHORT_STRING = 1, 63

_MAX_DIGITS = 38  # Digits and scale of the largest decimal.
_WORD_DIGITS = 18  # Digits that always fit an int64.
_EXACT_DIGITS, _EXACT_POWER = 15, 22  # Bounds within which a double is one exact operation.
_POWERS = np.array([10.0**power for power in range(_EXACT_POWER + 1)])
_MAX_EXPONENT = 10_000  # Larger exponents are not counted further.

_U32, _HALF = np.uint64(0xFFFF_FFFF), np.uint64(32)
_ONE, _TEN, _TOP = np.uint64(1), np.uint64(10), np.uint64(1) << np.uint64(63)


# ---- bytes


@njit(cache=True, inline="always")
def write_int(out, at, value, size):
    """Write the lowest `size` bytes of a value, little-endian; return the position after it."""
    for i in range(size):
        store8(out, at + i, (value >> (8 * i)) & 0xFF)
    return at + size


@njit(cache=True, inline="always")
def skip_space(text, at, end):
    """Return the position of the first byte from `at` on that is not white space."""
    while at < end:
        byte = load8(text, at)
        if byte != _SPACE and byte != _NEWLINE and byte != _RETURN and byte != _TAB:
            break
        at += 1
    return at


# ---- strings


@njit(cache=True, inline="always")
def _hex_digit(byte):
    """Return the value of a hexadecimal digit; -1 if it is none."""
    if _ZERO <= byte <= _NINE:
        return byte - _ZERO
    lower = byte | _LOWER
    return lower - 87 if 97 <= lower <= 102 else -1


@njit(cache=True)
def _read_unit(text, at, end):
    r"""Read the four digits of a \u escape; return the UTF-16 unit, or -1."""
    if at + 4 > end:
        return -1
    unit = 0
    for i in range(4):
        digit = _hex_digit(load8(text, at + i))
        if digit < 0:
            return -1
        unit = unit << 4 | digit
    return unit


@njit(cache=True)
def _write_code_point(out, at, code):
    """Write a code point in UTF-8; return the position after it."""
    if code < 0x80:
        store8(out, at, code)
        return at + 1
    size = 2 if code < 0x800 else 3 if code < 0x1_0000 else 4
    for i in range(size - 1, 0, -1):
        store8(out, at + i, 0x80 | (code & 0x3F))
        code >>= 6
    store8(out, at, (0xF00 >> size & 0xFF) | code)
    return at + size


@njit(cache=True)
def unescape(text, at, end, out, to):
    """Write the string whose text starts at `at`; return (after its quote or -1, end in `out`)."""
    while at < end:
        byte = load8(text, at)
        at += 1
        if byte == QUOTE:
            return at, to
        if byte < _SPACE:
            return -1, to
        if byte != _BACKSLASH:
            store8(out, to, byte)
            to += 1
            continue
        if at >= end:
            return -1, to
        byte = load8(text, at)
        at += 1
        if byte == ord("u"):
            code = _read_unit(text, at, end)
            at += 4
            if 0xD800 <= code < 0xDC00:  # The first half of a pair.
                if at + 2 > end or load8(text, at) != _BACKSLASH or load8(text, at + 1) != 117:
                    return -1, to
                low = _read_unit(text, at + 2, end)
                if low < 0xDC00 or low > 0xDFFF:
                    return -1, to
                at += 6
                code = 0x1_0000 + ((code - 0xD800) << 10) + (low - 0xDC00)
            elif code < 0 or 0xDC00 <= code <= 0xDFFF:
                return -1, to
            to = _write_code_point(out, to, code)
            continue
        if byte == ord("n"):
            byte = 10
        elif byte == ord("t"):
            byte = 9
        elif byte == ord("r"):
            byte = 13
        elif byte == ord("b"):
            byte = 8
        elif byte == ord("f"):
            byte = 12
        elif byte != QUOTE and byte != _BACKSLASH and byte != ord("/"):
            return -1, to
        store8(out, to, byte)
        to += 1
    return -1, to


@njit(cache=True, inline="always")
def plain_length(text, at, end):
    """Return the length of a string without escapes up to its quote; -1 if it is not one."""
    start = at
    while at < end:
        byte = load8(text, at)
        if byte == QUOTE:
            return at - start
        if byte == _BACKSLASH or byte < _SPACE:
            break
        at += 1
    return -1


@njit(cache=True)
def _write_string(text, at, end, out, to):
    """Write the string that starts at `at`; return (after its quote or -1, end in `out`)."""
    length = plain_length(text, at, end)
    if length < 0:
        after, stop = unescape(text, at, end, out, to + 5)
        if after < 0:
            return after, to
        length = stop - to - 5
        if length <= _MAX_SHORT_STRING:
            for i in range(length):
                store8(out, to + 1 + i, load8(out, to + 5 + i))
            store8(out, to, length << 2 | _SHORT_STRING)
            return after, to + 1 + length
        store8(out, to, _LONG_STRING)
        write_int(out, to + 1, length, 4)
        return after, stop
    if length <= _MAX_SHORT_STRING:
        store8(out, to, length << 2 | _SHORT_STRING)
        to += 1
    else:
        store8(out, to, _LONG_STRING)
        to = write_int(out, to + 1, length, 4)
    copy_bytes(out, to, text, at, length)
    return at + length + 1, to + length


# ---- numbers


@njit(cache=True, inline="always")
def _is_digit(text, at, end):
    return at < end and _ZERO <= load8(text, at) <= _NINE


@njit(cache=True)
def _unscaled(text, at, end):
    """Return the digits from `at` on as an unsigned number of 128 bits: (high, low)."""
    high, low = np.uint64(0), np.uint64(0)
    while at < end:
        byte = load8(text, at)
        at += 1
        if byte < _ZERO or byte > _NINE:
            continue
        bottom = (low & _U32) * _TEN + np.uint64(byte - _ZERO)
        middle = (low >> _HALF) * _TEN + (bottom >> _HALF)
        low = (middle << _HALF) | (bottom & _U32)
        high = high * _TEN + (middle >> _HALF)
    return high, low


@njit(cache=True)
def _write_wide(out, to, high, low, negative):
    """Write a number of 128 bits, little-endian; return the position after it."""
    if negative and low:
        low = ~low + _ONE  # Cannot overflow, of which plain NumPy would warn.
        high = ~high
    elif negative and high:
        high = ~high + _ONE
    store64(out, to, low)
    store64(out, to + 8, high)
    return to + 16


@njit(cache=True, inline="always")
def _write_integer(out, to, value):
    """Write an int64 in the smallest type that holds it; return the position after it."""
    if -128 <= value < 128:
        store8(out, to, _INT8)
        return write_int(out, to + 1, value, 1)
    if -32_768 <= value < 32_768:
        store8(out, to, _INT16)
        return write_int(out, to + 1, value, 2)
    if -2_147_483_648 <= value < 2_147_483_648:
        store8(out, to, _INT32)
        return write_int(out, to + 1, value, 4)
    store8(out, to, _INT64)
    store64(out, to + 1, np.uint64(value))
    return to + 9


@njit(cache=True, inline="always")
def _write_decimal(out, to, value, scale, digits):
    """Write a decimal of up to 18 digits; return the position after it."""
    size = 4 if digits <= 9 and scale <= 9 else 8
    store8(out, to, _DECIMAL4 if size == 4 else _DECIMAL8)
    store8(out, to + 1, scale)
    return write_int(out, to + 2, value, size)


@njit(cache=True, inline="always")
def write_double(out, to, bits):
    """Write a double, given as its 64 bits; return the position after it."""
    store8(out, to, _DOUBLE)
    store64(out, to + 1, bits)
    return to + 9


@njit(cache=True, inline="always")
def _read_digits(text, at, end, value, digits):
    """Read digits; return (after them, their value behind `value`, digits without leading zeros).

    The value counts only while there are no more than _WORD_DIGITS digits.
    """
    while _is_digit(text, at, end):
        byte = load8(text, at)
        digits += digits > 0 or byte != _ZERO
        if digits <= _WORD_DIGITS:
            value = value * 10 + (byte - _ZERO)
        at += 1
    return at, value, digits


@njit(cache=True, inline="always")
def _read_exponent(text, at, end):
    """Read an exponent after its `e`; return (after it, its value, its digits)."""
    sign = 1
    if at < end and (load8(text, at) == _PLUS or load8(text, at) == _MINUS):
        sign = -1 if load8(text, at) == _MINUS else 1
        at += 1
    start, exponent = at, 0
    while _is_digit(text, at, end):
        if exponent < _MAX_EXPONENT:
            exponent = exponent * 10 + (load8(text, at) - _ZERO)
        at += 1
    return at, sign * exponent, at - start


@njit(cache=True, inline="always")
def _write_scientific(out, to, value, negative, digits, exponent):
    """Write value * 10 ** exponent as a double if that is one exact operation; return the end."""
    if digits > _EXACT_DIGITS or exponent < -_EXACT_POWER or exponent > _EXACT_POWER:
        return to
    exact = np.float64(value)
    if exponent < 0:
        exact /= _POWERS[-exponent]
    else:
        exact *= _POWERS[exponent]
    return write_double(out, to, np.float64(-exact if negative else exact).view(np.uint64))


@njit(cache=True)
def _write_number(text, at, end, out, to):
    """Write the number that starts at `at`; return (after it, end in `out`, BAD and so on)."""
    start = at
    negative = load8(text, at) == _MINUS
    at += negative
    first = at
    at, value, digits = _read_digits(text, at, end, np.int64(0), 0)
    count = at - first
    if not count or (count > 1 and load8(text, first) == _ZERO):
        return at, to, BAD
    scale, exponent, power = 0, 0, 0
    has_fraction = at < end and load8(text, at) == _DOT
    if has_fraction:
        point = at + 1
        at, value, digits = _read_digits(text, point, end, value, digits)
        scale = at - point
        if not scale:
            return at, to, BAD
    has_exponent = at < end and load8(text, at) | _LOWER == _EXPONENT
    if has_exponent:
        at, exponent, power = _read_exponent(text, at + 1, end)
        if not power:
            return at, to, BAD
    # Spark's parser misses a digit of a fraction or an exponent at the very end of its input.
    spared = at == end and has_fraction != has_exponent
    if count + scale + power > MAX_NUMBER_DIGITS + spared:
        return at, to, BAD
    if has_exponent:
        stop = _write_scientific(out, to, value, negative, digits, exponent - scale)
        return at, stop, WRITTEN if stop > to else HARD
    if digits <= _WORD_DIGITS and scale <= _WORD_DIGITS:
        value = -value if negative else value
        if has_fraction:
            return at, _write_decimal(out, to, value, scale, digits), WRITTEN
        return at, _write_integer(out, to, value), WRITTEN
    if digits > _MAX_DIGITS or scale > _MAX_DIGITS:
        return at, to, HARD
    high, low = _unscaled(text, start, at)
    fits = high == np.uint64(0) and (low < _TOP or (negative and low == _TOP))
    if fits and not has_fraction:
        bits = ~low + _ONE if negative else low
        return at, _write_integer(out, to, np.int64(bits)), WRITTEN
    store8(out, to, _DECIMAL16)
    store8(out, to + 1, scale)
    return at, _write_wide(out, to + 2, high, low, negative), WRITTEN


# ---- literals, and any value


@njit(cache=True, inline="always")
def _is_literal(text, at, end, place):
    """Return whether the literal at `place` in _LITERALS stands at `at`."""
    start, length = place
    if at + length > end:
        return False
    same = True
    for i in range(length):
        same &= load8(text, at + i) == _LITERALS[start + i]
    return same


@njit(cache=True, inline="always")
def _write_literal(text, at, end, out, to):
    """Write the literal that starts at `at`; return (after it, end in `out`, BAD or WRITTEN)."""
    kind, length = -1, 0
    if _is_literal(text, at, end, _TRUE_AT):
        kind, length = _TRUE, 4
    elif _is_literal(text, at, end, _FALSE_AT):
        kind, length = _FALSE, 5
    elif _is_literal(text, at, end, _NULL_AT):
        kind, length = _NULL, 4
    if kind < 0:
        return at, to, BAD
    at += length
    if at < end:
        byte = load8(text, at)
        lower = byte | _LOWER
        if ord("a") <= lower <= ord("z") or _ZERO <= byte <= _NINE or byte >= 0x80:
            return at, to, BAD
    store8(out, to, kind)
    return at, to + 1, WRITTEN


@njit(cache=True)
def write_scalar(text, at, end, out, to, is_alone):
    """Write the value that starts at `at`; return (after it, end in `out`, BAD and so on).

    `is_alone`: it is not within brackets. Then only white space may follow a number.
    """
    byte = load8(text, at)
    if byte == QUOTE:
        after, to = _write_string(text, at + 1, end, out, to)
        return after, to, BAD if after < 0 else WRITTEN
    if byte == _MINUS or _ZERO <= byte <= _NINE:
        at, to, result = _write_number(text, at, end, out, to)
        if is_alone and at < end and skip_space(text, at, at + 1) == at:
            result = BAD
        return at, to, result
    return _write_literal(text, at, end, out, to)
