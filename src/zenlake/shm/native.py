"""Atomic operations on shared memory, compiled by LLVM when first used (some 15 ms).

Python has no atomic operations, and a plain read and write of a word that other processes change
would wipe their changes. Knows addresses only: callers check every bound before.
"""

import ctypes
import threading
from typing import Any, NamedTuple

from zenlake.errors import ZError

VALID, INVALIDATED, REUSED = 0, 1, 2  # What `hold` and `finish` say of a buffer.

# Offsets are those of a buffer's header (headers.py): 0 references, 4 invalidated, 8 generation.
_IR = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i32 @usleep(i32)

define i32 @add(ptr %at, i32 %delta) {
  %old = atomicrmw add ptr %at, i32 %delta seq_cst
  ret i32 %old
}

define i64 @set_bits(i64 %at, i64 %bits) {
  %p = inttoptr i64 %at to ptr
  %old = atomicrmw or ptr %p, i64 %bits seq_cst
  ret i64 %old
}

define i64 @clear_bits(i64 %at, i64 %bits) {
  %p = inttoptr i64 %at to ptr
  %kept = xor i64 %bits, -1
  %old = atomicrmw and ptr %p, i64 %kept seq_cst
  ret i64 %old
}

define internal i32 @verdict(i64 %header, i32 %generation) {
  %at_generation = add i64 %header, 8
  %g = inttoptr i64 %at_generation to ptr
  %now = load atomic i32, ptr %g seq_cst, align 4
  %same = icmp eq i32 %now, %generation
  br i1 %same, label %check, label %reused
check:
  %at_invalidated = add i64 %header, 4
  %i = inttoptr i64 %at_invalidated to ptr
  %flag = load atomic i8, ptr %i seq_cst, align 1
  %valid = icmp eq i8 %flag, 0
  %result = select i1 %valid, i32 0, i32 1
  ret i32 %result
reused:
  ret i32 2
}

define i32 @hold(i64 %header, i32 %generation, i64 %watchdog, i64 %bit) {
  %w = inttoptr i64 %watchdog to ptr
  %old = atomicrmw or ptr %w, i64 %bit seq_cst
  %result = call i32 @verdict(i64 %header, i32 %generation)
  ret i32 %result
}

define i32 @finish(i64 %header, i32 %generation) {
  %result = call i32 @verdict(i64 %header, i32 %generation)
  %mine = icmp ne i32 %result, 2
  br i1 %mine, label %drop, label %done
drop:
  %r = inttoptr i64 %header to ptr
  %old = atomicrmw sub ptr %r, i32 1 seq_cst
  br label %done
done:
  ret i32 %result
}

define void @copy(ptr %to, ptr %from, i64 %size) {
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %size, i1 false)
  ret void
}

; Records of seven words, POINTER in pointers.py: header, generation, watchdog, bit, source, size,
; verdict.
define void @hold_all(i64 %records, i64 %count) {
entry:
  %r = inttoptr i64 %records to ptr
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %each, label %end
each:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %base = mul i64 %i, 7
  %p0 = getelementptr i64, ptr %r, i64 %base
  %p1 = getelementptr i64, ptr %p0, i64 1
  %p2 = getelementptr i64, ptr %p0, i64 2
  %p3 = getelementptr i64, ptr %p0, i64 3
  %p6 = getelementptr i64, ptr %p0, i64 6
  %header = load i64, ptr %p0
  %wide = load i64, ptr %p1
  %generation = trunc i64 %wide to i32
  %watchdog = load i64, ptr %p2
  %bit = load i64, ptr %p3
  %verdict = call i32 @hold(i64 %header, i32 %generation, i64 %watchdog, i64 %bit)
  %result = zext i32 %verdict to i64
  store i64 %result, ptr %p6
  %valid = icmp eq i32 %verdict, 0
  br i1 %valid, label %next, label %release
release:
  %again = call i32 @finish(i64 %header, i32 %generation)
  br label %next
next:
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %count
  br i1 %more, label %each, label %end
end:
  ret void
}

; Targets: where each payload is copied to; 0: nothing is copied.
define void @finish_all(i64 %records, i64 %targets, i64 %count) {
entry:
  %r = inttoptr i64 %records to ptr
  %t = inttoptr i64 %targets to ptr
  %copies = icmp ne i64 %targets, 0
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %each, label %end
each:
  %i = phi i64 [ 0, %entry ], [ %i1, %release ]
  %base = mul i64 %i, 7
  %p0 = getelementptr i64, ptr %r, i64 %base
  %p1 = getelementptr i64, ptr %p0, i64 1
  %p4 = getelementptr i64, ptr %p0, i64 4
  %p5 = getelementptr i64, ptr %p0, i64 5
  %p6 = getelementptr i64, ptr %p0, i64 6
  %header = load i64, ptr %p0
  %wide = load i64, ptr %p1
  %generation = trunc i64 %wide to i32
  br i1 %copies, label %copy, label %release
copy:
  %pt = getelementptr i64, ptr %t, i64 %i
  %target = load i64, ptr %pt
  %source = load i64, ptr %p4
  %size = load i64, ptr %p5
  %from = inttoptr i64 %source to ptr
  %to = inttoptr i64 %target to ptr
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %size, i1 false)
  br label %release
release:
  %verdict = call i32 @finish(i64 %header, i32 %generation)
  %result = zext i32 %verdict to i64
  store i64 %result, ptr %p6
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %count
  br i1 %more, label %each, label %end
end:
  ret void
}

; Table: the number of entries, then the addresses of a watchdog array and of the bits, for each.
; Ends after as many rounds without a bit as `linger` says, or as soon as the number is negative.
define void @confirm(i64 %table, i64 %words, i32 %microseconds, i32 %linger) {
entry:
  %t = inttoptr i64 %table to ptr
  br label %round
round:
  %left = phi i32 [ %linger, %entry ], [ %left1, %sleep ]
  %count = load atomic i64, ptr %t seq_cst, align 8
  %stopped = icmp slt i64 %count, 0
  br i1 %stopped, label %end, label %segments
segments:
  %s = phi i64 [ 0, %round ], [ %s1, %next_segment ]
  %any = phi i64 [ 0, %round ], [ %seen, %next_segment ]
  %more = icmp slt i64 %s, %count
  br i1 %more, label %segment, label %after
segment:
  %slot = mul i64 %s, 2
  %slot1 = add i64 %slot, 1
  %slot2 = add i64 %slot, 2
  %pw = getelementptr i64, ptr %t, i64 %slot1
  %ph = getelementptr i64, ptr %t, i64 %slot2
  %aw = load i64, ptr %pw
  %ah = load i64, ptr %ph
  %watchdogs = inttoptr i64 %aw to ptr
  %held = inttoptr i64 %ah to ptr
  br label %word
word:
  %k = phi i64 [ 0, %segment ], [ %k1, %next_word ]
  %acc = phi i64 [ %any, %segment ], [ %acc1, %next_word ]
  %ph2 = getelementptr i64, ptr %held, i64 %k
  %bits = load atomic i64, ptr %ph2 seq_cst, align 8
  %acc1 = or i64 %acc, %bits
  %none = icmp eq i64 %bits, 0
  br i1 %none, label %next_word, label %set
set:
  %pw2 = getelementptr i64, ptr %watchdogs, i64 %k
  %old = atomicrmw or ptr %pw2, i64 %bits seq_cst
  br label %next_word
next_word:
  %k1 = add i64 %k, 1
  %last = icmp slt i64 %k1, %words
  br i1 %last, label %word, label %next_segment
next_segment:
  %seen = phi i64 [ %acc1, %next_word ]
  %s1 = add i64 %s, 1
  br label %segments
after:
  %idle = icmp eq i64 %any, 0
  %less = sub i32 %left, 1
  %left1 = select i1 %idle, i32 %less, i32 %linger
  %over = icmp sle i32 %left1, 0
  br i1 %over, label %end, label %sleep
sleep:
  %slept = call i32 @usleep(i32 %microseconds)
  br label %round
end:
  ret void
}
"""

_U32, _I32, _I64, _U64 = ctypes.c_uint32, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64
_POINTER = ctypes.c_void_p  # Passed faster than an integer.
# PYFUNCTYPE keeps the GIL, which is faster for a few instructions; CFUNCTYPE releases it.
_TYPES = {
    "add": ctypes.PYFUNCTYPE(_U32, _POINTER, _I32),
    "set_bits": ctypes.PYFUNCTYPE(_U64, _I64, _U64),
    "clear_bits": ctypes.PYFUNCTYPE(_U64, _I64, _U64),
    "hold": ctypes.PYFUNCTYPE(_I32, _I64, _U32, _I64, _U64),
    "finish": ctypes.PYFUNCTYPE(_I32, _I64, _U32),
    "copy": ctypes.CFUNCTYPE(None, _POINTER, ctypes.c_char_p, ctypes.c_ssize_t),
    "hold_all": ctypes.PYFUNCTYPE(None, _I64, _I64),
    "finish_all": ctypes.CFUNCTYPE(None, _I64, _I64, _I64),
    "confirm": ctypes.CFUNCTYPE(None, _I64, _I64, _I32, _I32),
}


class Native(NamedTuple):
    """The compiled functions."""

    add: Any
    "Add to a 32-bit word; return its value before."
    set_bits: Any
    "Set bits of a 64-bit word; return its value before."
    clear_bits: Any
    "Clear bits of a 64-bit word; return its value before."
    hold: Any
    "Confirm a buffer's watchdog bit, then return whether the buffer is VALID."
    finish: Any
    "Return whether a buffer is still VALID, and give a reference to it back unless it is REUSED."
    copy: Any
    "Copy bytes to an address, without the GIL."
    hold_all: Any
    "Do what `hold` does for many pointers; give the references to other than VALID buffers back."
    finish_all: Any
    "Copy the payloads of many held pointers, if there are targets, then do what `finish` does."
    confirm: Any
    "Confirm the watchdog bits of a table every so many microseconds, until none was left for some"
    " rounds."


class NotCompiled(ZError):
    """The functions cannot be compiled here: llvmlite is installed, and does not load.

    Not an error of one payload: a session that receives pointers ends by it, and is opened again
    without shared memory.
    """


_lock = threading.Lock()
_native: Native | None = None
_failure: str | None = None


def failure() -> str | None:
    """Return why the functions cannot be compiled; None: they can, or it was not tried."""
    return _failure


def load() -> Native:
    """Return the functions, compiled on the first call. NotCompiled: llvmlite does not load."""
    global _native, _failure
    if _native is None:
        with _lock:
            if _native is None and _failure is None:
                try:
                    _native = _compile()
                except Exception as error:  # noqa: BLE001  # A broken installation raises any.
                    _failure = f"llvmlite does not load, which the atomic operations need: {error}"
            if _native is None:
                raise NotCompiled(f"{_failure}: install numba again, or turn shared memory off")
    return _native


def _compile() -> Native:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    module = llvm.parse_assembly(_IR)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    functions = {name: kind(engine.get_function_address(name)) for name, kind in _TYPES.items()}
    engine.detach()  # The code stays for as long as the process: threads may run it until the end.
    return Native(**functions)
