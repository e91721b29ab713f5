"""The compiled half of log/read/reader.py: many small blocks of a log as one run of messages.

Knows the entries of links, keys and batches (docs/log-format.md), as bytes. Gathers the meaning of
all key ids in one table for all blocks; a link whose id changes its meaning gets another number.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from zenlake.log.format import (
    BATCH_ENTRY,
    KEY_ENTRY,
    LINK_ENTRY,
    LOSS_ENTRY,
)
from zenlake.log.format import HEADER_BYTES as HEADER_BYTES
from zenlake.log.format import MAX_LINKS as MAX_LINKS
from zenlake.wire.kernels.memory import copy_bytes, load8, load64, pointer_to, store8
from zenlake.wire.kernels.scan_core import is_utf8

LINK_BYTES, KEY_BYTES = LINK_ENTRY.itemsize, KEY_ENTRY.itemsize
LOSS_BYTES, BATCH_BYTES = LOSS_ENTRY.itemsize, BATCH_ENTRY.itemsize
NUMBERS = MAX_LINKS << 17  # How many numbers `link << 17 | mapping << 16 | scope` can have.
LINKS, KEYS, LOSSES, BATCHES, SAMPLES, META = range(6)  # Columns of `counts`.
DONE, LINKS_FULL, PREFIXES_FULL, DAMAGED = range(4)  # Why the kernel ended.

CRC_BYTES = 4  # The header's last field.
BATCH_LINK, BATCH_COUNT = 8, 12  # Positions of `link` and of `count`, `length` in a batch entry.

_U32 = np.uint64(0xFFFF_FFFF)
_HALF = np.uint64(32)
_BYTE = np.uint64(0xFF)


def _crc_tables() -> npt.NDArray[np.uint64]:
    """Return, for each byte, its share in a CRC-32 that 0 to 7 more bytes go into."""
    tables = np.zeros((8, 256), np.uint64)
    crc = np.arange(256, dtype=np.uint64)
    for number in range(8):
        for _ in range(8):
            crc = np.where(
                crc & np.uint64(1), crc >> np.uint64(1) ^ np.uint64(0xEDB88320), crc >> np.uint64(1)
            )
        tables[number] = crc
    return tables.reshape(-1)


CRC_TABLES = _crc_tables()


class LinkTables(NamedTuple):
    """Links by number, and the texts of their ids; `used`: links, prefixes, bytes of prefixes."""

    entries: npt.NDArray[np.uint8]
    prefix_of: npt.NDArray[np.int32]
    "By id number: 1 + the index of its prefix; 0 = none. Untouched pages take no memory."
    ends: npt.NDArray[np.int64]
    prefixes: npt.NDArray[np.uint8]
    used: npt.NDArray[np.int64]


@njit(cache=True)
def _crc(buf, start, end, tables, crc):
    """Return a CRC-32 as zlib's, without its first and last inversion."""
    at = start
    while at + 8 <= end:
        word = load64(buf, at) ^ crc
        crc = np.uint64(0)
        for i in range(8):
            crc ^= tables[(7 - i) * 256 + np.int64((word >> np.uint64(8 * i)) & _BYTE)]
        at += 8
    while at < end:
        byte = np.int64((crc ^ np.uint64(load8(buf, at))) & _BYTE)
        crc = (crc >> np.uint64(8)) ^ tables[byte]
        at += 1
    return crc


@njit(cache=True, nogil=True)
def crc_kernel(data, starts, ends, longest, tables, out):
    """Write the CRC of each block of at most `longest` bytes: of all bytes but the CRC field."""
    buf = pointer_to(data)
    for block in range(len(starts)):
        start, end = starts[block], ends[block]
        if end - start > longest or start < 0 or end > len(data) or end - start < HEADER_BYTES:
            continue
        crc = _crc(buf, start, start + HEADER_BYTES - CRC_BYTES, tables, _U32)
        crc = _crc(buf, start + HEADER_BYTES, end, tables, crc)
        out[block] = crc ^ _U32


@njit(cache=True, inline="always")
def _same(a, at, b, start, length):
    """Return whether two ranges have the same bytes."""
    for i in range(length):  # noqa: SIM110 (Numba does not compile all())
        if load8(a, at + i) != load8(b, start + i):
            return False
    return True


@njit(cache=True)
def _find_link(buf, at, entries, count):
    """Return the number of the newest link with this entry, or -1."""
    for number in range(count - 1, -1, -1):
        if _same(entries, number * LINK_BYTES, buf, at, LINK_BYTES):
            return number
    return -1


@njit(cache=True)
def _add_link(buf, at, entries, used):
    """Copy a link's entry; return its number, or -1 if there is no room."""
    number = used[0]
    if number >= MAX_LINKS:
        return -1
    copy_bytes(entries, number * LINK_BYTES, buf, at, LINK_BYTES)
    used[0] = number + 1
    return number


@njit(cache=True)
def _add_prefix(buf, text, length, number, prefix_of, prefix_ends, prefixes, room, used):
    """Note the text that the id `number` stands for; DONE, PREFIXES_FULL, or DAMAGED: not UTF-8."""
    count, end = used[1], used[2]
    if count + 1 >= len(prefix_ends) or end + length > room:
        return PREFIXES_FULL
    if not is_utf8(buf, text, text + length):
        return DAMAGED
    copy_bytes(prefixes, end, buf, text, length)
    prefix_ends[count + 1] = end + length
    prefix_of[number] = count + 1
    used[1] = count + 1
    used[2] = end + length
    return DONE


@njit(cache=True, inline="always")
def _gather_keys(
    buf,
    at,
    n_links,
    n_keys,
    texts_end,
    entries,
    prefix_of,
    prefix_ends,
    prefixes,
    room,
    used,
    numbers,
    fresh,
):
    """Note what the ids of a block's keys stand for; `at` is where its links start.

    A link whose id changes its meaning gets another number, and the keys are gathered from the
    first on again. DONE, or why it ended.
    """
    first_entry = at + n_links * LINK_BYTES
    first_text = first_entry + n_keys * KEY_BYTES
    key = 0
    text = first_text
    while key < n_keys:
        entry = first_entry + key * KEY_BYTES
        head = load64(buf, entry)
        link = np.int64(head & _BYTE)
        mapping = np.int64((head >> np.uint64(8)) & _BYTE)
        scope = np.int64((head >> np.uint64(16)) & np.uint64(0xFFFF))
        suffix_len = np.int64(head >> _HALF)
        text_len = np.int64(load64(buf, entry + 4) >> _HALF)
        length = text_len - suffix_len
        if link >= n_links or mapping > 1 or length < 0 or text + text_len > texts_end:
            return DAMAGED
        if scope:
            number = numbers[link] << 17 | mapping << 16 | scope
            known = np.int64(prefix_of[number])
            if known:
                start = prefix_ends[known - 1]
                if prefix_ends[known] - start != length or not _same(
                    prefixes, start, buf, text, length
                ):
                    # The id stood for another text before: from here on this is another link.
                    if fresh[link]:
                        return DAMAGED  # the block itself gives the id two meanings
                    number = _add_link(buf, at + link * LINK_BYTES, entries, used)
                    if number < 0:
                        return LINKS_FULL
                    numbers[link] = number
                    fresh[link] = 1
                    key = 0
                    text = first_text
                    continue
            else:
                status = _add_prefix(
                    buf, text, length, number, prefix_of, prefix_ends, prefixes, room, used
                )
                if status != DONE:
                    return status
        elif length:
            return DAMAGED
        key += 1
        text += text_len
    return DONE if text == texts_end else DAMAGED


@njit(cache=True, inline="always")
def _copy_batches(buf, body, count, n_links, numbers, out, first):
    """Copy a block's batch entries with links as numbered: (messages or -1, bytes of data)."""
    size, messages = np.int64(0), np.int64(0)
    for i in range(count):
        entry = body + i * BATCH_BYTES
        link = load8(buf, entry + BATCH_LINK)
        pair = load64(buf, entry + BATCH_COUNT)
        in_batch, length = np.int64(pair & _U32), np.int64(pair >> _HALF)
        if link >= n_links or in_batch > length or (length and not in_batch):
            return np.int64(-1), size
        size += length
        messages += in_batch
        target = (first + i) * BATCH_BYTES
        copy_bytes(out, target, buf, entry, BATCH_BYTES)
        store8(out, target + BATCH_LINK, numbers[link])
    return messages, size


@njit(cache=True, nogil=True)
def blocks_kernel(
    data, starts, bodies, body_ends, counts, first, links, copied, out_batches, out, ends
):
    """Gather the blocks from `first` on; return (next block, why it ended).

    Writes their batch entries with links as numbered in `links`, and if `copied` their data.
    ends[i + 1] is how many batches and bytes of data there are after block i, ends[0] what was
    there before. Everything that a block says of itself is checked here.
    """
    buf = pointer_to(data)
    entries = pointer_to(links.entries)
    prefix_of = links.prefix_of
    prefix_ends = links.ends
    prefixes = pointer_to(links.prefixes)
    prefix_room = len(links.prefixes)
    used = links.used
    batch_data = pointer_to(out_batches)
    out_data = pointer_to(out)
    numbers = np.zeros(MAX_LINKS, np.int64)
    fresh = np.zeros(MAX_LINKS, np.uint8)  # 1: the link's number was made for this block
    for block in range(first, len(starts)):
        n_links, n_keys = counts[block, LINKS], counts[block, KEYS]
        n_batches, meta = counts[block, BATCHES], counts[block, META]
        at = starts[block] + HEADER_BYTES
        texts = at + n_links * LINK_BYTES + n_keys * KEY_BYTES
        texts_end = at + meta - counts[block, LOSSES] * LOSS_BYTES
        body, body_end = bodies[block], body_ends[block]
        if (
            n_links > MAX_LINKS
            or at < HEADER_BYTES
            or at + meta > len(data)
            or texts > texts_end
            or body < at + meta
            or body_end > len(data)
            or n_batches * BATCH_BYTES > body_end - body
        ):
            return block, DAMAGED

        for i in range(n_links):
            entry = at + i * LINK_BYTES
            number = _find_link(buf, entry, entries, used[0])
            fresh[i] = number < 0
            if number < 0:
                number = _add_link(buf, entry, entries, used)
                if number < 0:
                    return block, LINKS_FULL
            numbers[i] = number
        status = _gather_keys(
            buf,
            at,
            n_links,
            n_keys,
            texts_end,
            entries,
            prefix_of,
            prefix_ends,
            prefixes,
            prefix_room,
            used,
            numbers,
            fresh,
        )
        if status != DONE:
            return block, status

        batch_at, data_at = ends[block, 0], ends[block, 1]
        if (batch_at + n_batches) * BATCH_BYTES > len(out_batches):
            return block, DAMAGED
        messages, size = _copy_batches(buf, body, n_batches, n_links, numbers, batch_data, batch_at)
        body += n_batches * BATCH_BYTES
        if size != body_end - body or messages != counts[block, SAMPLES]:
            return block, DAMAGED
        if copied:
            if data_at + size > len(out):
                return block, DAMAGED
            copy_bytes(out_data, data_at, buf, body, size)
        ends[block + 1, 0] = batch_at + n_batches
        ends[block + 1, 1] = data_at + size
    return len(starts), DONE
