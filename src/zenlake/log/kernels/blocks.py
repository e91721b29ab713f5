"""The compiled half of log/reader.py: many small blocks of a log as one run of messages.

Knows the entries of links, keys and batches (docs/log-format.md), as bytes. What the ids of a link
stand for is gathered in one table for all blocks; a link whose id changes its meaning is another.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-calls=False
# mypy: disallow-untyped-decorators=False

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from zenlake.wire.kernels.memory import copy_bytes, load8, load64, place_of, store8
from zenlake.wire.kernels.scan import _is_utf8

HEADER_BYTES, LINK_BYTES, KEY_BYTES, LOSS_BYTES, BATCH_BYTES = 92, 24, 12, 64, 24
MAX_LINKS = 128
NUMBERS = MAX_LINKS << 17  # link, mapping and scope as one number
LINKS, KEYS, LOSSES, BATCHES, SAMPLES, META = range(6)  # columns of `counts`
DONE, LINKS_FULL, PREFIXES_FULL, DAMAGED = range(4)

_U32 = np.uint64(0xFFFF_FFFF)
_HALF = np.uint64(32)
_BYTE = np.uint64(0xFF)


def _crc_tables() -> npt.NDArray[np.uint64]:
    """For each byte, what it does to a CRC-32 that 0 to 7 more bytes go into."""
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
    """Links by number, and what their ids stand for; `used`: links, prefixes, prefixes' bytes."""

    entries: npt.NDArray[np.uint8]
    prefix_of: npt.NDArray[np.int32]
    "By number: the prefix's place + 1; 0 = none. Memory that nobody touches costs nothing."
    ends: npt.NDArray[np.int64]
    prefixes: npt.NDArray[np.uint8]
    used: npt.NDArray[np.int64]


@njit(cache=True)
def _crc(buf, start, end, tables, crc):
    """CRC-32 as in zlib, without its first and last inversion."""
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
    """The CRC of each block that is not longer than `longest`: all of it but the field itself."""
    buf = place_of(data)
    for block in range(len(starts)):
        start, end = starts[block], ends[block]
        if end - start > longest or start < 0 or end > len(data) or end - start < HEADER_BYTES:
            continue
        crc = _crc(buf, start, start + HEADER_BYTES - 4, tables, _U32)
        crc = _crc(buf, start + HEADER_BYTES, end, tables, crc)
        out[block] = crc ^ _U32


@njit(cache=True, inline="always")
def _same(a, at, b, start, length):
    for i in range(length):  # noqa: SIM110 (compiled: a loop it is)
        if load8(a, at + i) != load8(b, start + i):
            return False
    return True


@njit(cache=True)
def _link_number(buf, at, entries, count):
    """The newest link with this entry, or -1."""
    for number in range(count - 1, -1, -1):
        if _same(entries, number * LINK_BYTES, buf, at, LINK_BYTES):
            return number
    return -1


@njit(cache=True, nogil=True)
def blocks_kernel(
    data, starts, bodies, body_ends, counts, first, links, copied, out_batches, out, ends
):
    """Gather the blocks from `first` on: their batches, with links as numbered in `links`, and
    their data if that is to be copied. (next block, why it ended).

    `ends`: for each block, how many batches and bytes of data there are when it is done with; row
    0 is what was there before. What a block says of itself is checked here.
    """
    buf = place_of(data)
    entries = place_of(links.entries)
    prefix_of = links.prefix_of
    prefix_ends = links.ends
    prefixes = place_of(links.prefixes)
    prefix_room = len(links.prefixes)
    used = links.used
    batch_place = place_of(out_batches)
    out_place = place_of(out)
    numbers = np.zeros(MAX_LINKS, np.int64)
    fresh = np.zeros(MAX_LINKS, np.uint8)  # the link's number was made for this block
    for block in range(first, len(starts)):
        n_links, n_keys, n_losses = counts[block, LINKS], counts[block, KEYS], counts[block, LOSSES]
        n_batches, meta = counts[block, BATCHES], counts[block, META]
        at = starts[block] + HEADER_BYTES
        texts = at + n_links * LINK_BYTES + n_keys * KEY_BYTES
        texts_end = at + meta - n_losses * LOSS_BYTES
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
            number = _link_number(buf, entry, entries, used[0])
            fresh[i] = number < 0
            if number < 0:
                number = used[0]
                if number >= MAX_LINKS:
                    return block, LINKS_FULL
                copy_bytes(entries, number * LINK_BYTES, buf, entry, LINK_BYTES)
                used[0] = number + 1
            numbers[i] = number

        key = 0
        text = texts
        while key < n_keys:
            entry = at + n_links * LINK_BYTES + key * KEY_BYTES
            head = load64(buf, entry)
            link = np.int64(head & np.uint64(0xFF))
            mapping = np.int64((head >> np.uint64(8)) & np.uint64(0xFF))
            scope = np.int64((head >> np.uint64(16)) & np.uint64(0xFFFF))
            suffix_len = np.int64(head >> _HALF)
            text_len = np.int64(load64(buf, entry + 4) >> _HALF)
            length = text_len - suffix_len
            if link >= n_links or mapping > 1 or length < 0 or text + text_len > texts_end:
                return block, DAMAGED
            if scope == 0:
                if length:
                    return block, DAMAGED
                key += 1
                text += text_len
                continue
            number = numbers[link] << 17 | mapping << 16 | scope
            prefix = np.int64(prefix_of[number])
            if prefix == 0:
                prefix, end = used[1], used[2]
                if prefix + 1 >= len(prefix_ends) or end + length > prefix_room:
                    return block, PREFIXES_FULL
                if not _is_utf8(buf, text, text + length):
                    return block, DAMAGED
                copy_bytes(prefixes, end, buf, text, length)
                prefix_ends[prefix + 1] = end + length
                prefix_of[number] = prefix + 1
                used[1] = prefix + 1
                used[2] = end + length
            else:
                end = prefix_ends[prefix - 1]
                if prefix_ends[prefix] - end != length or not _same(
                    prefixes, end, buf, text, length
                ):
                    # The id stood for something else before: from here on this is another link.
                    if fresh[link]:
                        return block, DAMAGED
                    number = used[0]
                    if number >= MAX_LINKS:
                        return block, LINKS_FULL
                    copy_bytes(
                        entries, number * LINK_BYTES, buf, at + link * LINK_BYTES, LINK_BYTES
                    )
                    used[0] = number + 1
                    numbers[link] = number
                    fresh[link] = 1
                    key = 0
                    text = texts
                    continue
            key += 1
            text += text_len
        if text != texts_end:
            return block, DAMAGED

        batch_at, data_at = ends[block, 0], ends[block, 1]
        size = n_batches * BATCH_BYTES
        if (batch_at + n_batches) * BATCH_BYTES > len(out_batches):
            return block, DAMAGED
        total, messages = np.int64(0), np.int64(0)
        for i in range(n_batches):
            entry = body + i * BATCH_BYTES
            link = load8(buf, entry + 8)
            pair = load64(buf, entry + 12)
            count, length = np.int64(pair & _U32), np.int64(pair >> _HALF)
            if link >= n_links or count > length or (length and not count):
                return block, DAMAGED
            total += length
            messages += count
            target = (batch_at + i) * BATCH_BYTES
            copy_bytes(batch_place, target, buf, entry, BATCH_BYTES)
            store8(batch_place, target + 8, numbers[link])
        if total != body_end - body - size or messages != counts[block, SAMPLES]:
            return block, DAMAGED
        if copied:
            if data_at + total > len(out):
                return block, DAMAGED
            copy_bytes(out_place, data_at, buf, body + size, total)
        ends[block + 1, 0] = batch_at + n_batches
        ends[block + 1, 1] = data_at + total
    return len(starts), DONE
