"""The Arrow schema of a capture, with a description of every column.

Knows names, types and what null means. Does not build anything.
"""

import pyarrow as pa

# name, type, description; a column is null where the message lacks the field
COLUMNS = (
    ("packet_time", pa.timestamp("us", "UTC"), "when the packet that completed the message came"),
    ("packet", pa.int64(), "that packet's number in the file, from 1"),
    ("stream", pa.int32(), "the conversation's number in the file, from 0"),
    ("src", pa.string(), "the sender's IP address"),
    ("src_port", pa.int32(), "the sender's port"),
    ("dst", pa.string(), "the receiver's IP address"),
    ("dst_port", pa.int32(), "the receiver's port"),
    ("protocol", pa.string(), "tcp, udp or multicast"),
    ("direction", pa.string(), "opener or acceptor: who sent it; null if no handshake was seen"),
    ("src_zid", pa.string(), "the sender's Zenoh id; null if not seen"),
    ("dst_zid", pa.string(), "the receiver's Zenoh id; null if not seen"),
    ("message", pa.string(), "PUSH, REQUEST, RESPONSE, DECLARE, INIT_SYN, FRAGMENT, SCOUT ..."),
    ("body", pa.string(), "put, delete, query, reply, reply_delete, err, d_subscriber ..."),
    ("lane", pa.int8(), "priority of the FRAME or FRAGMENT: 0 (control) to 7 (background)"),
    ("reliable", pa.bool_(), "whether that lane is the reliable one"),
    ("sn", pa.int64(), "sequence number of the FRAME or (first) FRAGMENT"),
    ("scope", pa.int32(), "the key's declared id; 0 = none"),
    ("mapping", pa.string(), "sender or receiver: who declared the scope; null without a scope"),
    ("suffix", pa.string(), "the key's text after its scope"),
    ("key", pa.string(), "the key in full; null if its scope's declaration was not seen"),
    ("payload", pa.binary(), "of a put, reply, error or query; a FRAGMENT's piece"),
    ("encoding", pa.string(), "the payload's type: application/json"),
    ("schema", pa.string(), "what follows the type; invalid UTF-8 becomes U+FFFD"),
    ("timestamp", pa.timestamp("us", "UTC"), "the sample's own time"),
    ("timestamp_ntp64", pa.int64(), "the same exactly: NTP64, all 64 bits"),
    ("timestamp_id", pa.string(), "whose clock gave it, a Zenoh id"),
    ("source_id", pa.string(), "the source's Zenoh id"),
    ("source_entity", pa.int64(), "the source's entity id"),
    ("source_sn", pa.int64(), "the source's own sequence number"),
    ("attachment", pa.binary(), "what the user attached"),
    ("priority", pa.int8(), "of the message's QoS: 0 (control) to 7 (background)"),
    ("congestion_control", pa.string(), "drop, block or block_first"),
    ("express", pa.bool_(), "not to wait for a batch to fill"),
    ("request_id", pa.int64(), "of a query, its replies and their end"),
    ("target", pa.string(), "best_matching, all or all_complete, of a query"),
    ("consolidation", pa.string(), "auto, none, monotonic or latest, of a query or reply"),
    ("parameters", pa.string(), "of a query"),
    ("budget", pa.int64(), "how many replies a query wants"),
    ("timeout_ms", pa.int64(), "how long a query waits"),
    ("responder_id", pa.string(), "who replied, a Zenoh id"),
    ("responder_entity", pa.int64(), "the replier's entity id"),
    ("first", pa.bool_(), "a FRAGMENT says that it is the first piece"),
    ("more", pa.bool_(), "a FRAGMENT says that more pieces follow"),
    ("drop", pa.bool_(), "a FRAGMENT says that its message was given up"),
    ("fragments", pa.int32(), "of how many FRAGMENTs this message was joined"),
    ("wire_bytes", pa.int32(), "the message's length, after decompression"),
    ("detail", pa.string(), "what else it says: handshakes, declarations, closes ... in words"),
)

NOT_NULL = {
    *("packet_time", "packet", "stream", "src", "src_port", "dst", "dst_port", "protocol"),
    *("message", "wire_bytes"),
}

CAPTURE = pa.schema(
    [
        pa.field(name, kind, name not in NOT_NULL, {"description": meaning})
        for name, kind, meaning in COLUMNS
    ]
)
