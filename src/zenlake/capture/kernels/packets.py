"""The compiled walk over a capture file: one row of numbers per TCP or UDP packet.

Knows pcap records, pcapng blocks, link types, IP, TCP and UDP headers, and which stream a packet
belongs to. Copies nothing and knows no Zenoh. Every index into the file is checked here.
"""

import numpy as np
from numba import njit

from zenlake.wire.kernels.memory import copy_bytes, load8, mix, pointer_to

PACKET = np.dtype(
    [
        ("time", "i8"),  # nanoseconds since the epoch
        ("number", "i8"),  # ordinal of the packet in the file, from 1
        ("at", "i8"),  # first byte of its payload in the file
        ("size", "i4"),  # bytes of payload that the file has
        ("cut", "i4"),  # bytes of payload that were on the wire and are not in the file
        ("seq", "u4"),  # TCP: sequence number of the payload's first byte
        ("stream", "i4"),
        ("side", "u1"),  # 0: the sender of the stream's first packet
        ("flags", "u1"),  # TCP flags
        ("offset", "u2"),  # IP fragment: its offset, in units of 8 bytes
        ("more", "u4"),  # IP fragment: 1 if another follows
    ]
)
FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
TCP, UDP = 6, 17

# Indices into the walk's state, one int64 each.
S_POS, S_FORMAT, S_BIG, S_LINK, S_PACKETS, S_STREAMS, S_INTERFACES, S_TIME, S_DONE = range(9)
STATE_WORDS = 9
FORMAT_MICROS, FORMAT_NANOS, FORMAT_NG = 0, 1, 2

# Indices into the counts of what was not read, or not completely, one int64 each.
(
    C_TRUNCATED,  # bytes at the end of the file that are not a whole record
    C_DAMAGED,  # bytes between records
    C_BAD_BLOCKS,
    C_UNKNOWN_LINK,
    C_UNKNOWN_INTERFACE,
    C_NOT_IP,
    C_NOT_TCP_OR_UDP,
    C_SHORT,  # packets whose headers are cut off or wrong
    C_FRAGMENTS,
    C_CUT,  # packets that the capture cut off
    C_NO_ROOM,  # packets of streams above the limit
) = range(11)
COUNT_WORDS = 11

# Indices into a stream's numbers; those of a side start at F_SIDE + side * SIDE_WORDS.
F_PACKETS, F_BYTES, F_FIRST_TIME, F_LAST_TIME, F_FLIP = range(5)
F_SIDE = 5
D_AT, D_SIZE, D_SEQ, D_ISN = range(4)  # First payload, and the SYN's sequence number; -1 = none.
SIDE_WORDS = 4
STREAM_WORDS = F_SIDE + 2 * SIDE_WORDS
KEY_BYTES = 40  # Two ends of 18 bytes (address, port), protocol, IP version, 2 unused.
END_BYTES = 18
KEY_WORDS = KEY_BYTES // 8

I_LINK, I_RESOLUTION, I_SNAPLEN, I_OFFSET = range(4)
INTERFACE_WORDS = 4
MICROSECONDS = 6  # Default resolution of an interface: ten to the minus six.

MAX_PACKET_BYTES = 1 << 20  # A record that claims more is damaged.
_MAX_TAGS = 8
_MAX_HEADERS = 16
_DAY = 86_400
_NANOS = 1_000_000_000
_LAST_SECOND = 9_000_000_000  # In the year 2255: its nanoseconds still fit 63 bits.
_RECORD = 16
_SHB, _IDB, _OPB, _SPB, _EPB = 0x0A0D0D0A, 1, 2, 3, 6
_BYTE_ORDER = 0x1A2B3C4D
_MIN_BLOCK = 12
_IPV4, _IPV6 = 0x0800, 0x86DD
_NO_NEXT_HEADER = 59
_REUSE = 1 << 20  # Distance of a SYN from earlier data above which it opens another connection.
_U32 = 0xFFFF_FFFF

# Indices into the record that was read last.
R_START, R_CAPTURED, R_WIRE, R_LINK, R_TIME = range(5)
RECORD_WORDS = 5

TOO_SHORT, NOT_IP, UNKNOWN_LINK = -1, -2, -3


@njit(cache=True)
def _be16(buf, pos):
    return load8(buf, pos) << 8 | load8(buf, pos + 1)


@njit(cache=True)
def _be32(buf, pos):
    return _be16(buf, pos) << 16 | _be16(buf, pos + 2)


@njit(cache=True)
def _u16(buf, pos, big):
    if big:
        return _be16(buf, pos)
    return load8(buf, pos) | load8(buf, pos + 1) << 8


@njit(cache=True)
def _u32(buf, pos, big):
    if big:
        return _be32(buf, pos)
    return _u16(buf, pos, 0) | _u16(buf, pos + 2, 0) << 16


@njit(cache=True)
def _power(base, exponent):
    value = np.int64(1)
    for _ in range(exponent):
        value *= base
    return value


@njit(cache=True)
def _nanos(high, low, resolution, offset):
    """Return a pcapng time in nanoseconds; 0 if it is out of range."""
    ticks = np.uint64(high) << np.uint64(32) | np.uint64(low)
    exponent = resolution & 0x7F
    if resolution & 0x80:
        if not 1 <= exponent <= 62:
            return np.int64(0)
        seconds = np.int64(ticks >> np.uint64(exponent))
        rest = np.int64(ticks & np.uint64((np.int64(1) << exponent) - 1))
        below = max(0, exponent - 30)  # lowest bits, which would overflow the product
        lower = rest & ((np.int64(1) << below) - 1)
        rest = (rest >> below) * _NANOS + (lower * _NANOS >> below) >> exponent - below
    else:
        if not 1 <= exponent <= 18:
            return np.int64(0)
        unit = _power(10, exponent)
        seconds = np.int64(ticks // np.uint64(unit))
        rest = np.int64(ticks % np.uint64(unit))
        if exponent <= 9:
            rest *= _power(10, 9 - exponent)
        else:
            rest //= _power(10, exponent - 9)
    seconds += offset
    if seconds < 0 or seconds > _LAST_SECOND:
        return np.int64(0)
    return seconds * _NANOS + rest


# ---- pcap records


@njit(cache=True)
def _is_record(buf, pos, end, state):
    """Return whether the bytes at `pos` look like a pcap record."""
    if pos + _RECORD > end:
        return False
    big = state[S_BIG]
    captured = _u32(buf, pos + 8, big)
    wire = _u32(buf, pos + 12, big)
    if captured == 0 or captured > wire or wire > MAX_PACKET_BYTES:
        return False
    if _u32(buf, pos + 4, big) >= (_NANOS if state[S_FORMAT] == FORMAT_NANOS else 1_000_000):
        return False
    if pos + _RECORD + captured > end:
        return False
    seconds = _u32(buf, pos, big)
    before = state[S_TIME] // _NANOS
    return before == 0 or abs(seconds - before) <= _DAY


@njit(cache=True)
def _next_record(buf, pos, end, state):
    """Return the first record from `pos` on that another one or the end follows, or -1."""
    for at in range(pos, end - _RECORD + 1):
        if _is_record(buf, at, end, state):
            after = at + _RECORD + _u32(buf, at + 8, state[S_BIG])
            if after == end or _is_record(buf, after, end, state):
                return at
    return -1


@njit(cache=True)
def _read_record(buf, end, state, counts, found):
    """Take one step in a pcap file; return whether it found a record."""
    pos = state[S_POS]
    rest = end - pos
    if rest == 0:
        state[S_DONE] = 1
        return False
    big = state[S_BIG]
    captured = np.int64(0)
    if rest >= _RECORD:
        captured = _u32(buf, pos + 8, big)
    if rest < _RECORD or captured > MAX_PACKET_BYTES or captured > rest - _RECORD:
        after = _next_record(buf, pos + 1, end, state)
        if after >= 0:
            counts[C_DAMAGED] += after - pos
            state[S_POS] = after
            return False
        state[S_DONE] = 1
        state[S_POS] = end
        if rest < _RECORD or captured > MAX_PACKET_BYTES:
            counts[C_TRUNCATED if rest < _RECORD else C_DAMAGED] += rest
            return False
        counts[C_TRUNCATED] += rest
        captured = rest - _RECORD
    else:
        state[S_POS] = pos + _RECORD + captured
    fraction = _u32(buf, pos + 4, big)
    found[R_START] = pos + _RECORD
    found[R_CAPTURED] = captured
    found[R_WIRE] = max(captured, _u32(buf, pos + 12, big))
    found[R_LINK] = state[S_LINK]
    found[R_TIME] = _u32(buf, pos, big) * _NANOS + (
        fraction if state[S_FORMAT] == FORMAT_NANOS else fraction * 1000
    )
    return True


# ---- pcapng blocks


@njit(cache=True)
def _section_order(buf, pos, end):
    """Return the byte order of the section header at `pos`: 1 big, 0 little, -1 neither."""
    if pos + _MIN_BLOCK > end:
        return -1
    if _be32(buf, pos + 8) == _BYTE_ORDER:
        return 1
    return 0 if _u32(buf, pos + 8, 0) == _BYTE_ORDER else -1


@njit(cache=True)
def _block_size(buf, pos, end, state):
    """Return the length of the block at `pos`, or -1 if its two lengths differ."""
    if pos + _MIN_BLOCK > end:
        return -1
    big = state[S_BIG]
    if _be32(buf, pos) == _SHB:
        big = _section_order(buf, pos, end)
        if big < 0:
            return -1
    size = _u32(buf, pos + 4, big)
    if size < _MIN_BLOCK or size % 4 or size > end - pos:
        return -1
    return size if _u32(buf, pos + size - 4, big) == size else -1


@njit(cache=True)
def _next_block(buf, pos, end, state):
    """Return the first block of a known kind from `pos` on, or -1."""
    for at in range((pos + 3) & ~3, end - _MIN_BLOCK + 1, 4):
        kind = _u32(buf, at, state[S_BIG])
        if kind == _SHB or (kind <= _EPB and kind != 0):
            size = _block_size(buf, at, end, state)
            if size > 0:
                return at
    return -1


@njit(cache=True)
def _read_interface(buf, pos, size, state, interfaces, counts):
    """Read an interface description: link type, and resolution and offset of its times."""
    number = state[S_INTERFACES]
    if size < 20 or number >= len(interfaces):
        counts[C_BAD_BLOCKS] += 1
        return
    big = state[S_BIG]
    interface = interfaces[number]
    interface[I_LINK] = _u16(buf, pos + 8, big)
    interface[I_SNAPLEN] = _u32(buf, pos + 12, big)
    interface[I_RESOLUTION] = MICROSECONDS
    interface[I_OFFSET] = 0
    state[S_INTERFACES] = number + 1
    at, end = pos + 16, pos + size - 4
    while at + 4 <= end:
        code, length = _u16(buf, at, big), _u16(buf, at + 2, big)
        at += 4
        if code == 0 or at + length > end:
            return
        if code == 9 and length == 1:
            interface[I_RESOLUTION] = load8(buf, at)
        elif code == 14 and length == 8:
            first, second = _u32(buf, at, big), _u32(buf, at + 4, big)
            high, low = (first, second) if big else (second, first)
            if high == 0:  # any other value is past the year 2106
                interface[I_OFFSET] = low
        at += (length + 3) & ~3


@njit(cache=True)
def _read_packet_block(buf, pos, size, kind, state, interfaces, counts, found):
    """Read a block with a packet; return whether it gave a record."""
    big = state[S_BIG]
    if size < 32 and kind != _SPB:
        counts[C_BAD_BLOCKS] += 1
        return False
    number = np.int64(0)
    if kind == _EPB:
        number = _u32(buf, pos + 8, big)
    elif kind == _OPB:
        number = _u16(buf, pos + 8, big)
    if number >= state[S_INTERFACES]:
        counts[C_UNKNOWN_INTERFACE] += 1
        return False
    interface = interfaces[number]
    if kind == _SPB:
        if size < 16:
            counts[C_BAD_BLOCKS] += 1
            return False
        wire = _u32(buf, pos + 8, big)
        captured = min(wire, size - 16)
        if interface[I_SNAPLEN]:
            captured = min(captured, interface[I_SNAPLEN])
        found[R_START] = pos + 12
        found[R_TIME] = state[S_TIME]
    else:
        captured, wire = _u32(buf, pos + 20, big), _u32(buf, pos + 24, big)
        if captured > size - 32:
            counts[C_BAD_BLOCKS] += 1
            return False
        found[R_START] = pos + 28
        found[R_TIME] = _nanos(
            _u32(buf, pos + 12, big),
            _u32(buf, pos + 16, big),
            interface[I_RESOLUTION],
            interface[I_OFFSET],
        )
    if captured > MAX_PACKET_BYTES:
        counts[C_BAD_BLOCKS] += 1
        return False
    found[R_CAPTURED] = captured
    found[R_WIRE] = max(captured, wire)
    found[R_LINK] = interface[I_LINK]
    return True


@njit(cache=True)
def _read_block(buf, end, state, interfaces, counts, found):
    """Take one step in a pcapng file; return whether it found a record."""
    pos = state[S_POS]
    size = _block_size(buf, pos, end, state)
    if size < 0:
        after = _next_block(buf, pos + 1, end, state)
        if after >= 0:
            counts[C_DAMAGED] += after - pos
            state[S_POS] = after
        else:
            if end > pos:
                counts[C_TRUNCATED] += end - pos
            state[S_POS] = end
            state[S_DONE] = 1
        return False
    kind = _u32(buf, pos, state[S_BIG])
    state[S_POS] = pos + size
    if kind == _SHB:
        state[S_BIG] = _section_order(buf, pos, end)
        state[S_INTERFACES] = 0
    elif kind == _IDB:
        _read_interface(buf, pos, size, state, interfaces, counts)
    elif kind in (_EPB, _SPB, _OPB):
        return _read_packet_block(buf, pos, size, kind, state, interfaces, counts, found)
    return False


# ---- packets


@njit(cache=True)
def _ip_at(buf, pos, end, link):
    """Return where IP starts in a packet of this link type; TOO_SHORT, NOT_IP or UNKNOWN_LINK."""
    if link == 101 or link == 12 or link == 14 or link == 228 or link == 229:
        return pos
    if link == 0 or link == 108:
        if pos + 4 > end:
            return TOO_SHORT
        family = _be32(buf, pos)
        if family > 0xFFFF:
            family = _u32(buf, pos, 0)
        # AF_INET is 2 everywhere; AF_INET6 is 10, 24, 28 or 30
        return pos + 4 if family in (2, 10, 24, 28, 30) else NOT_IP
    if link == 1:
        at, body = pos + 12, pos + 14
    elif link == 113:
        at, body = pos + 14, pos + 16
    elif link == 276:
        at, body = pos, pos + 20
    else:
        return UNKNOWN_LINK
    for _ in range(_MAX_TAGS):
        if body > end:
            return TOO_SHORT
        kind = _be16(buf, at)
        if kind in (_IPV4, _IPV6):
            return body
        if kind not in (0x8100, 0x88A8, 0x9100, 0x9200):
            return NOT_IP
        at, body = body + 2, body + 4
    return NOT_IP


@njit(cache=True)
def _write_end(key, at, buf, address, length, port):
    """Write an address and a port as one end of a key."""
    for i in range(16):
        key[at + i] = load8(buf, address + i) if i < length else 0
    key[at + 16] = port >> 8
    key[at + 17] = port & 0xFF


@njit(cache=True)
def _write_key(buf, source, target, length, source_port, target_port, protocol, key):
    """Write a stream's key, the lower end first; return 1 if that is the target, else 0."""
    order = np.int64(0)
    for i in range(length):
        order = load8(buf, source + i) - load8(buf, target + i)
        if order != 0:
            break
    if order == 0:
        order = source_port - target_port
    swapped = 1 if order > 0 else 0
    _write_end(key, END_BYTES * swapped, buf, source, length, source_port)
    _write_end(key, END_BYTES * (1 - swapped), buf, target, length, target_port)
    key[2 * END_BYTES] = protocol
    key[2 * END_BYTES + 1] = 4 if length == 4 else 6
    return swapped


@njit(cache=True)
def _hash(words, seed):
    hashed = seed
    for i in range(KEY_WORDS):
        hashed = mix(hashed ^ words[i])
    return hashed


@njit(cache=True)
def _starts_again(stream, side, seq):
    """Return whether a SYN with this number opens another connection between the same ends."""
    base = F_SIDE + side * SIDE_WORDS
    if stream[base + D_ISN] >= 0:
        return stream[base + D_ISN] != seq
    if stream[base + D_SEQ] >= 0:
        return (stream[base + D_SEQ] - seq - 1) & _U32 >= _REUSE
    return False


@njit(cache=True)
def _new_stream(state, keys, streams, words, swapped, slots, slot):
    number = state[S_STREAMS]
    if number >= len(streams):
        return -1
    for i in range(KEY_WORDS):
        keys[number, i] = words[i]
    streams[number, F_FLIP] = swapped
    for i in range(2 * SIDE_WORDS):
        streams[number, F_SIDE + i] = -1
    slots[slot] = number
    state[S_STREAMS] = number + 1
    return number


@njit(cache=True)
def _stream_of(words, seed, swapped, syn, seq, state, keys, streams, slots):
    """Return the number of the stream with this key, which may be new; -1 if there is no room."""
    mask = np.uint64(len(slots) - 1)
    slot = np.int64(_hash(words, seed) & mask)
    while True:
        number = slots[slot]
        if number < 0:
            return _new_stream(state, keys, streams, words, swapped, slots, slot)
        same = True
        for i in range(KEY_WORDS):
            if keys[number, i] != words[i]:
                same = False
                break
        if same:
            side = swapped ^ streams[number, F_FLIP]
            if syn and _starts_again(streams[number], side, seq):
                return _new_stream(state, keys, streams, words, swapped, slots, slot)
            return number
        slot = (slot + 1) & np.int64(mask)


@njit(cache=True)
def _count_packet(stream, side, row, protocol):
    """Add a packet to the numbers of its stream."""
    size = np.int64(row["size"]) + np.int64(row["cut"])
    if stream[F_PACKETS] == 0:
        stream[F_FIRST_TIME] = row["time"]
    stream[F_PACKETS] += 1
    stream[F_BYTES] += size
    stream[F_LAST_TIME] = row["time"]
    base = F_SIDE + side * SIDE_WORDS
    seq = np.int64(row["seq"])
    if protocol == TCP and row["flags"] & SYN:
        stream[base + D_ISN] = seq
        seq = (seq + 1) & _U32
    if row["size"] > 0:
        if stream[base + D_SEQ] < 0:
            stream[base + D_SEQ] = seq
        isn = stream[base + D_ISN]
        first = protocol == UDP or isn < 0 or seq == (isn + 1) & _U32
        if first and stream[base + D_AT] < 0:
            stream[base + D_AT] = row["at"]
            stream[base + D_SIZE] = row["size"]


@njit(cache=True)
def _skip_headers(buf, ip, end, piece):
    """Skip IPv6's extension headers: (position of the payload or -1, protocol).

    Writes the offset, flag and number of a fragment to `piece`.
    """
    kind = load8(buf, ip + 6)
    pos = ip + 40
    for _ in range(_MAX_HEADERS):
        if kind in (TCP, UDP, _NO_NEXT_HEADER):
            return pos, kind
        if pos + 8 > end:
            return -1, kind
        if kind == 44:
            piece[0] = _be16(buf, pos + 2) & 0xFFF9
            piece[1] = _be32(buf, pos + 4)
            size = 8
        elif kind == 51:
            size = (load8(buf, pos + 1) + 2) * 4
        elif kind == 0 or kind == 43 or kind == 60:
            size = (load8(buf, pos + 1) + 1) * 8
        else:
            return pos, kind
        if piece[0] > 7:  # not the first piece: its content follows, not another header
            return pos + size, load8(buf, pos)
        kind = load8(buf, pos)
        pos += size
    return -1, kind


@njit(cache=True, inline="always")
def _read_ipv4(buf, ip, piece):
    """Read an IPv4 header: (position of the payload or -1, protocol, length of the packet)."""
    flags = _be16(buf, ip + 6)
    piece[0] = (flags & 0x1FFF) << 3 | (1 if flags & 0x2000 else 0)
    piece[1] = _be16(buf, ip + 4)
    size = (load8(buf, ip) & 0x0F) * 4
    return ip + size if size >= 20 else -1, load8(buf, ip + 9), _be16(buf, ip + 2)


@njit(cache=True, inline="always")
def _read_ipv6(buf, ip, end, piece):
    """Read an IPv6 header: (position of the payload or -1, protocol, length of the packet)."""
    if ip + 40 > end:
        return -1, np.int64(0), np.int64(0)
    total = _be16(buf, ip + 4)
    pos, protocol = _skip_headers(buf, ip, end, piece)
    return pos, protocol, total + 40 if total else 0


@njit(cache=True)
def _write_payload(row, counts, at, header, end, wire_end):
    """Write where the payload after `header` bytes stands; False if the header is cut off.

    `end` is where the file's bytes end, `wire_end` where those on the wire did.
    """
    if at + header > wire_end:
        counts[C_SHORT] += 1
        return False
    start = min(at + header, end)
    row["at"] = start
    row["size"] = end - start
    row["cut"] = wire_end - end - (at + header - start)
    if row["cut"]:
        counts[C_CUT] += 1
    return True


@njit(cache=True)
def _read_tcp(buf, pos, end, wire_end, row, counts):
    """Read a TCP header into `row`; False if it is cut off or wrong."""
    if pos + 20 > end:
        counts[C_SHORT] += 1
        return False
    header = (load8(buf, pos + 12) >> 4) * 4
    row["flags"] = load8(buf, pos + 13)
    row["seq"] = _be32(buf, pos + 4)
    if header < 20:
        counts[C_SHORT] += 1
        return False
    return _write_payload(row, counts, pos, header, end, wire_end)


@njit(cache=True)
def _read_udp(buf, pos, end, wire_end, whole, row, counts):
    """Read a UDP header into `row`; its length counts if the datagram is `whole`."""
    if pos + 8 > end:
        counts[C_SHORT] += 1
        return False
    length = _be16(buf, pos + 4)
    if whole and length >= 8:
        wire_end = min(wire_end, pos + length)
        end = min(end, wire_end)
    return _write_payload(row, counts, pos, np.int64(8), end, wire_end)


@njit(cache=True)
def _read_packet(buf, found, row, piece, key, words, seed, state, counts, keys, streams, slots):
    """Fill `row` from the record in `found`; return whether a reader needs the row."""
    start = found[R_START]
    end = start + found[R_CAPTURED]
    ip = _ip_at(buf, start, end, found[R_LINK])
    if ip < 0:
        which = C_UNKNOWN_LINK if ip == UNKNOWN_LINK else C_NOT_IP if ip == NOT_IP else C_SHORT
        counts[which] += 1
        return False
    if ip + 20 > end:
        counts[C_SHORT] += 1
        return False
    piece[0] = 0  # fragment: offset in the upper 13 bits, more in bit 0
    piece[1] = 0  # fragment: number of the datagram
    version = load8(buf, ip) >> 4
    if version == 4:
        pos, protocol, total = _read_ipv4(buf, ip, piece)
        source, target, length = ip + 12, ip + 16, 4
    elif version == 6:
        pos, protocol, total = _read_ipv6(buf, ip, end, piece)
        source, target, length = ip + 8, ip + 24, 16
    else:
        counts[C_NOT_IP] += 1
        return False
    wire_end = start + found[R_WIRE]
    if total:  # 0: segmentation was left to the network card
        wire_end = min(wire_end, ip + total)
    end = min(end, wire_end)
    if pos < 0 or pos > end:
        counts[C_SHORT] += 1
        return False
    row["time"] = found[R_TIME]
    row["number"] = state[S_PACKETS]
    row["offset"] = piece[0] >> 3
    row["more"] = piece[0] & 1
    row["flags"] = 0
    row["seq"] = 0
    row["side"] = 0
    if piece[0]:
        counts[C_FRAGMENTS] += 1
        if protocol != UDP:
            return False
        _write_key(buf, source, target, length, 0, 0, protocol, key)
        row["seq"] = np.int64(mix(_hash(words, seed) ^ np.uint64(piece[1]))) & _U32
        if piece[0] > 7:
            row["stream"] = -1
            row["at"] = pos
            row["size"] = end - pos
            row["cut"] = wire_end - end
            return True
    if protocol == TCP:
        good = _read_tcp(buf, pos, end, wire_end, row, counts)
    elif protocol == UDP:
        good = _read_udp(buf, pos, end, wire_end, piece[0] == 0, row, counts)
    else:
        counts[C_NOT_TCP_OR_UDP] += 1
        return False
    if not good:
        return False
    swapped = _write_key(
        buf, source, target, length, _be16(buf, pos), _be16(buf, pos + 2), protocol, key
    )
    syn = protocol == TCP and row["flags"] & (SYN | ACK) == SYN
    seq = np.int64(row["seq"])
    number = _stream_of(words, seed, swapped, syn, seq, state, keys, streams, slots)
    if number < 0:
        counts[C_NO_ROOM] += 1
        return False
    side = swapped ^ streams[number, F_FLIP]
    row["stream"] = number
    row["side"] = side
    _count_packet(streams[number], side, row, protocol)
    return protocol == UDP or row["size"] or row["cut"] or row["flags"] & (SYN | FIN | RST)


@njit(cache=True, nogil=True)
def walk(
    data, state, interfaces, counts, keys, streams, slots, key, words, packets, most_bytes, seed
):
    """Fill `packets` from where `state` says; return the number of rows filled.

    Ends when `packets` is full, after `most_bytes` of the file, or with the file (state[S_DONE]).
    `key` has room for one key; `words` is a view of it as 64-bit words.
    """
    buf = pointer_to(data)
    end = len(data)
    found = np.zeros(RECORD_WORDS, np.int64)
    piece = np.zeros(2, np.int64)
    stop = state[S_POS] + most_bytes
    count = 0
    while count < len(packets) and state[S_POS] < stop and not state[S_DONE]:
        if state[S_FORMAT] == FORMAT_NG:
            good = _read_block(buf, end, state, interfaces, counts, found)
        else:
            good = _read_record(buf, end, state, counts, found)
        if not good:
            continue
        state[S_PACKETS] += 1
        state[S_TIME] = found[R_TIME]
        if _read_packet(
            buf, found, packets[count], piece, key, words, seed, state, counts, keys, streams, slots
        ):
            count += 1
    return count


@njit(cache=True, nogil=True)
def join_pieces(data, at, size, prefix, out):
    """Copy pieces of the file one after another into `out`; return False if they do not fit.

    A `prefix` that is not negative is written as two bytes before its piece.
    """
    source = pointer_to(data)
    target = pointer_to(out)
    end = np.int64(0)
    for i in range(len(at)):
        start, length = np.int64(at[i]), np.int64(size[i])
        room = 2 if prefix[i] >= 0 else 0
        if start < 0 or length < 0 or start + length > len(data):
            return False
        if end + room + length > len(out):
            return False
        if room:
            out[end] = prefix[i] & 0xFF
            out[end + 1] = prefix[i] >> 8 & 0xFF
            end += 2
        copy_bytes(target, end, source, start, length)
        end += length
    return True


@njit(cache=True, nogil=True)
def split_batches(data, pos, framing, limit, ends):
    """Write where each whole batch from `pos` on ends; stop when `ends` is full.

    Returns how many, where the last one ends, and whether a length above `limit` follows.
    """
    buf = pointer_to(data)
    size = len(data)
    count = 0
    while count < len(ends) and pos + framing <= size:
        length = np.int64(0)
        for i in range(framing):
            length |= load8(buf, pos + i) << (8 * i)
        if length > limit:
            return count, pos, True
        if pos + framing + length > size:
            break
        pos += framing + length
        ends[count] = pos
        count += 1
    return count, pos, False
