"""Memory as the kernels see it: a place to read bytes from or write them to.

Compiled code that hands arrays to functions counts references up and down at every call, which
costs more than the work. So a kernel turns an array into a *place* once (`place_of`) and hands that
on: compiled, it is the array's address, and nothing here checks a bound, since whoever calls has.
Under NUMBA_BOUNDSCHECK and as plain Python a place is the array itself, and every access is
checked; the kernels' tests run that way too.
"""

import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

PLAIN = bool(config.DISABLE_JIT or config.BOUNDSCHECK)

_BYTE, _WORD = ir.IntType(8), ir.IntType(64)
_HALF, _FOLD, _LOW_HALF = np.uint64(32), np.uint64(29), np.uint64(0xFFFF_FFFF)
_FACTOR_1, _FACTOR_2 = np.uint64(0x9E37_79B1), np.uint64(0x85EB_CA77)


def _pointer(builder, place, at, kind=_BYTE):
    return builder.inttoptr(builder.add(place, at), kind.as_pointer())


@intrinsic
def _address(typing_context, array):
    def generate(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, _WORD)

    return types.int64(array), generate


@intrinsic
def _load8(typing_context, place, at):
    def generate(context, builder, signature, args):
        return builder.zext(builder.load(_pointer(builder, *args)), _WORD)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _load64(typing_context, place, at):
    def generate(context, builder, signature, args):
        return builder.load(_pointer(builder, *args, _WORD), align=1)

    return types.uint64(types.int64, types.int64), generate


@intrinsic
def _store8(typing_context, place, at, value):
    def generate(context, builder, signature, args):
        place, at, value = args
        builder.store(builder.trunc(value, _BYTE), _pointer(builder, place, at))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def _memcpy(typing_context, target, at, source, start, length):
    def generate(context, builder, signature, args):
        target, at, source, start, length = args
        cgutils.raw_memcpy(
            builder, _pointer(builder, target, at), _pointer(builder, source, start), length, 1
        )
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


@intrinsic
def _memcpy64(typing_context, target, at, source, start):
    def generate(context, builder, signature, args):
        target, at, source, start = args
        cgutils.raw_memcpy(
            builder,
            _pointer(builder, target, at),
            _pointer(builder, source, start),
            ir.Constant(_WORD, 64),
            1,
        )
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


if PLAIN:

    @njit(cache=True)
    def place_of(array):
        return array

    @njit(cache=True)
    def load8(place, at):
        return np.int64(place[at])

    @njit(cache=True)
    def load64(place, at):
        value = np.uint64(0)
        for i in range(8):
            value |= np.uint64(place[at + i]) << np.uint64(8 * i)
        return value

    @njit(cache=True)
    def store8(place, at, value):
        place[at] = value & 0xFF

    @njit(cache=True)
    def copy_bytes(target, at, source, start, length):
        for i in range(length):
            target[at + i] = source[start + i]

    @njit(cache=True)
    def copy64(target, at, source, start):
        copy_bytes(target, at, source, start, 64)

else:
    place_of = _address
    load8 = _load8
    "The byte at place[at], as int64."
    load64 = _load64
    "The eight bytes from place[at] on, as one little-endian uint64."
    store8 = _store8
    copy_bytes = _memcpy
    "target[at : at + length] = source[start : start + length]"
    copy64 = _memcpy64
    "The same for 64 bytes always: no length, so nothing to mispredict."


@njit(cache=True, inline="always")
def mixed(value):
    """Two products of 32 bits each, folded: spreads what differs, and never overflows, which as
    plain Python would be a warning."""
    low = (value & _LOW_HALF) * _FACTOR_1
    high = (value >> _HALF) * _FACTOR_2
    value = low ^ ((high << _HALF) | (high >> _HALF))
    return value ^ (value >> _FOLD)


@njit(cache=True, inline="always")
def put_zint(out, at, value):
    """Write a zint; gives where it ends."""
    for _ in range(8):
        if value < np.uint64(0x80):
            break
        store8(out, at, np.int64(value & np.uint64(0x7F)) | 0x80)
        value >>= np.uint64(7)
        at += 1
    store8(out, at, np.int64(value))
    return at + 1
