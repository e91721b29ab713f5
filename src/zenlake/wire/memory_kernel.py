"""What compiled array code cannot do fast by itself: copy bytes, load eight at once.

None of it checks a bound: whoever calls has. Under NUMBA_BOUNDSCHECK and as plain Python these are
ordinary loops over the arrays, which do check; the kernels' tests run that way too.
"""

import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

PLAIN = bool(config.DISABLE_JIT or config.BOUNDSCHECK)


def _pointer(context, builder, array_type, array, at):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [at])


@intrinsic
def _memcpy(typing_context, target, at, source, start, length):
    """target[at : at + length] = source[start : start + length], as one memcpy."""

    def generate(context, builder, signature, args):
        target, at, source, start, length = args
        cgutils.raw_memcpy(
            builder,
            _pointer(context, builder, signature.args[0], target, at),
            _pointer(context, builder, signature.args[2], source, start),
            length,
            1,
        )
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


@intrinsic
def _copy64(typing_context, target, at, source, start):
    """target[at : at + 64] = source[start : start + 64]: no length, so nothing to mispredict."""

    def generate(context, builder, signature, args):
        target, at, source, start = args
        cgutils.raw_memcpy(
            builder,
            _pointer(context, builder, signature.args[0], target, at),
            _pointer(context, builder, signature.args[2], source, start),
            ir.Constant(ir.IntType(64), 64),
            1,
        )
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64), generate


@intrinsic
def _load64(typing_context, array, at):
    """The eight bytes from array[at], as one little-endian number."""

    def generate(context, builder, signature, args):
        word = ir.IntType(64)
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1])
        return builder.load(builder.bitcast(pointer, word.as_pointer()), align=1)

    return types.uint64(array, types.int64), generate


if PLAIN:

    @njit(cache=True)
    def copy_bytes(target, at, source, start, length):
        for i in range(length):
            target[at + i] = source[start + i]

    @njit(cache=True)
    def copy64(target, at, source, start):
        copy_bytes(target, at, source, start, 64)

    @njit(cache=True)
    def load64(array, at):
        value = np.uint64(0)
        for i in range(8):
            value |= np.uint64(array[at + i]) << np.uint64(8 * i)
        return value

else:
    # The intrinsics themselves: a function around them would count references to its arrays.
    copy_bytes, copy64, load64 = _memcpy, _copy64, _load64
