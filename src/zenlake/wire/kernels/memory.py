"""Memory as the kernels see it: a pointer to read bytes from or write them to.

Compiled code that hands arrays to functions counts references up and down at every call, which
costs more than the work. So a kernel turns an array into a pointer once (`pointer_to`) and hands
that on: compiled, it is the array's address, and nothing here checks a bound; the caller has.
Under NUMBA_BOUNDSCHECK and as plain Python the pointer is the array itself, and every access is
checked; the kernels' tests run that way too.
"""

import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

SHORT = 64  # Length up to which copy_short copies a fixed number of bytes.
PLAIN = bool(config.DISABLE_JIT or config.BOUNDSCHECK)

_BYTE, _WORD = ir.IntType(8), ir.IntType(64)
_HALF, _FOLD, _LOW_HALF = np.uint64(32), np.uint64(29), np.uint64(0xFFFF_FFFF)
_FACTOR_1, _FACTOR_2 = np.uint64(0x9E37_79B1), np.uint64(0x85EB_CA77)


def _element(builder, pointer, at, kind=_BYTE):
    return builder.inttoptr(builder.add(pointer, at), kind.as_pointer())


@intrinsic
def _address(typing_context, array):
    def generate(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, _WORD)

    return types.int64(array), generate


@intrinsic
def _load8(typing_context, pointer, at):
    def generate(context, builder, signature, args):
        return builder.zext(builder.load(_element(builder, *args)), _WORD)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _load64(typing_context, pointer, at):
    def generate(context, builder, signature, args):
        return builder.load(_element(builder, *args, _WORD), align=1)

    return types.uint64(types.int64, types.int64), generate


@intrinsic
def _store8(typing_context, pointer, at, value):
    def generate(context, builder, signature, args):
        pointer, at, value = args
        builder.store(builder.trunc(value, _BYTE), _element(builder, pointer, at))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def _store64(typing_context, pointer, at, value):
    def generate(context, builder, signature, args):
        pointer, at, value = args
        builder.store(value, _element(builder, pointer, at, _WORD), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.uint64), generate


@intrinsic
def _memcpy(typing_context, target, at, source, start, length):
    def generate(context, builder, signature, args):
        target, at, source, start, length = args
        cgutils.raw_memcpy(
            builder, _element(builder, target, at), _element(builder, source, start), length, 1
        )
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


@intrinsic
def _memcpy64(typing_context, target, at, source, start):
    def generate(context, builder, signature, args):
        target, at, source, start = args
        cgutils.raw_memcpy(
            builder,
            _element(builder, target, at),
            _element(builder, source, start),
            ir.Constant(_WORD, 64),
            1,
        )
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


if PLAIN:

    @njit(cache=True)
    def pointer_to(array):
        return array

    @njit(cache=True)
    def load8(pointer, at):
        return np.int64(pointer[at])

    @njit(cache=True)
    def load64(pointer, at):
        value = np.uint64(0)
        for i in range(8):
            value |= np.uint64(pointer[at + i]) << np.uint64(8 * i)
        return value

    @njit(cache=True)
    def store8(pointer, at, value):
        pointer[at] = value & 0xFF

    @njit(cache=True)
    def store64(pointer, at, value):
        for i in range(8):
            pointer[at + i] = (np.uint64(value) >> np.uint64(8 * i)) & np.uint64(0xFF)

    @njit(cache=True)
    def copy_bytes(target, at, source, start, length):
        for i in range(length):
            target[at + i] = source[start + i]

    @njit(cache=True)
    def copy64(target, at, source, start):
        copy_bytes(target, at, source, start, 64)

else:
    pointer_to = _address
    load8 = _load8
    "Return the byte at pointer[at], as int64."
    load64 = _load64
    "Return the eight bytes from pointer[at] on, as one little-endian uint64."
    store8 = _store8
    "Write the lowest byte of a value to pointer[at]."
    store64 = _store64
    "Write a uint64 to the eight bytes from pointer[at] on, little-endian."
    copy_bytes = _memcpy
    "Do target[at : at + length] = source[start : start + length]."
    copy64 = _memcpy64
    "Copy 64 bytes: a fixed length leaves no branch to mispredict."


@njit(cache=True, inline="always")
def copy_short(target, at, room, source, start, size, length):
    """Copy `length` bytes to target[at], by a fixed 64 where both sides have so many.

    The bytes after `length` are overwritten by the next copy. `room` and `size` are the lengths of
    target and source.
    """
    if length <= SHORT and start + SHORT <= size and at + SHORT <= room:
        copy64(target, at, source, start)
    else:
        copy_bytes(target, at, source, start, length)


@njit(cache=True, inline="always")
def mix(value):
    """Return a hash of 64 bits: two products of 32 bits each, folded.

    The products never overflow, of which plain NumPy would warn.
    """
    low = (value & _LOW_HALF) * _FACTOR_1
    high = (value >> _HALF) * _FACTOR_2
    value = low ^ ((high << _HALF) | (high >> _HALF))
    return value ^ (value >> _FOLD)


@njit(cache=True, inline="always")
def write_zint(out, at, value):
    """Write a zint; return the position after it."""
    for _ in range(8):
        if value < np.uint64(0x80):
            break
        store8(out, at, np.int64(value & np.uint64(0x7F)) | 0x80)
        value >>= np.uint64(7)
        at += 1
    store8(out, at, np.int64(value))
    return at + 1
