"""The scan's row: one record of numbers for each message, and what its fields mean.

Written by scan.py, read by columnar/, capture/, log/ and the exchange. Knows no bytes: positions
count from the start of the buffer that was scanned.
"""

import numpy as np

from zenlake.wire.qos import DEFAULT

ROW = np.dtype(
    [
        ("kind", "u1"),  # message id: 0x19..0x1f network, 0x00..0x07 transport
        ("body", "u1"),  # PUT 1, DEL 2, QUERY 3, ERR 5; a REPLY is a RESPONSE with PUT or DEL
        ("qos", "u1"),  # the message's QoS byte, 5 if absent
        ("lane", "u1"),  # the FRAME's priority in bits 2:0, reliable in bit 3
        ("mapping", "u1"),  # 1 if the scope is an id of the sender, 0 of the receiver
        ("consolidation", "u1"),
        ("target", "u1"),
        ("flags", "u1"),  # FLAG_* below
        ("start", "i4"),  # first byte of the message
        ("end", "i4"),  # first byte after it
        ("batch", "i4"),  # index of the batch in the buffer
        ("sn", "u4"),
        ("scope", "u2"),
        ("encoding", "u2"),
        ("suffix", "i4"),  # first byte of the field; 0 = absent, in all fields below
        ("suffix_len", "i4"),
        ("payload", "i4"),
        ("payload_len", "i4"),
        ("schema", "i4"),
        ("schema_len", "i4"),
        ("time", "u8"),
        ("clock", "i4"),  # id of the timestamp's clock
        ("clock_len", "i4"),
        ("source", "i4"),  # Zenoh id of the source
        ("source_len", "i4"),
        ("source_eid", "u4"),
        ("source_sn", "u4"),
        ("attachment", "i4"),
        ("attachment_len", "i4"),
        ("request_id", "u4"),
        ("budget", "u4"),  # 0 = none
        ("parameters", "i4"),
        ("parameters_len", "i4"),
        ("responder", "i4"),  # Zenoh id of the responder
        ("responder_len", "i4"),
        ("responder_eid", "u4"),
        ("timeout_ms", "u8"),  # meaningful with FLAG_TIMEOUT
    ]
)
ROW_WORDS = ROW.itemsize // 8
assert ROW.itemsize == 128, "a row fills two cache lines"

# Bits of `flags`.
FLAG_FIRST, FLAG_MORE, FLAG_DROP = 0x01, 0x02, 0x04  # A FRAGMENT's markers.
FLAG_TIMEOUT = 0x08  # The REQUEST has a timeout.
FLAG_STACK = 0x10  # The message has a timestamp stack, which only the object codec reads.
FLAG_NODE_ID = 0x20  # The message has a NodeId other than 0, which holds for one link only.

LANE_RELIABLE = 0x08  # Bit of `lane`; the priority is in the three bits below.
DEFAULT_LANE = LANE_RELIABLE | int(DEFAULT.priority)

LOW_LATENCY, BARE = 1, 2  # Modes of a scan; 0 reads the stream as framed.

# State of a scan between two calls on one buffer.
STATE = np.dtype(
    [
        ("pos", "i8"),  # first byte that is not done with
        ("batch_end", "i8"),
        ("batch", "i8"),
        ("in_frame", "i8"),
        ("lane", "i8"),
        ("sn", "i8"),
        ("reason", "i8"),  # Reason of the refusal, 0 = none
        ("offset", "i8"),  # position of the refused field
    ]
)
