"""Drop reasons: one short, stable name for each cause of a message that was not delivered.

Every counter of drops in this package is keyed by these names, which may serve as labels of a
monitoring system. Does not count anything: counters.py, routing and the API do.
"""

from enum import StrEnum, auto


class DropReason(StrEnum):
    """Cause of a drop. `value` is the stable name, `description` a sentence for people.

    >>> str(DropReason.UNKNOWN_KEY)
    'unknown_key'
    >>> DropReason("unknown_key").description
    'A message names a key id that its sender has not declared, or an invalid key.'
    """

    description: str

    def __new__(cls, name: str, description: str = "") -> "DropReason":
        member = str.__new__(cls, name)
        member._value_ = name
        member.description = description
        return member

    # ---- sending

    CONGESTION_TIMEOUT = auto(), "No room in the lane within the time to wait."
    CONGESTION_PERSISTS = (
        auto(),
        "No room in the lane, and none has become free since the drop before.",
    )
    CONGESTION_NO_WAIT = auto(), "No room in the lane, and the sending thread must not wait."
    CONGESTION_BACKLOG = auto(), "The backlog of messages that must not be dropped is full."
    CONGESTION_FRAGMENTS = auto(), "A fragmented message that may be dropped made no progress."
    CONTROL_BACKLOG = auto(), "Too many transport control messages wait to be sent."
    SESSION_CLOSED = auto(), "The session to the receiver had ended."
    LINK_LOST = auto(), "Waited for a link that ended, of a session that goes on over others."
    MESSAGE_TOO_LARGE = auto(), "The message does not fit the receiving session."
    ENCODE_FAILED = auto(), "The message cannot be encoded."
    GROUP_LINK_FAILED = auto(), "The socket of a multicast group failed."

    # ---- receiving

    FRAGMENT_ABANDONED = auto(), "The sender gave up a fragmented message (the Drop marker)."
    FRAGMENT_RESTARTED = auto(), "A fragmented message began before the one before it was complete."
    FRAGMENT_FIRST_MISSING = (
        auto(),
        "A fragment belongs to a message whose first fragment was not received.",
    )
    FRAGMENT_MISSING = auto(), "A later fragment of a message was not received."
    FRAGMENT_TOO_LARGE = auto(), "A fragmented message is above the limit of bytes or of fragments."
    FRAGMENT_NO_MEMORY = auto(), "The memory for unfinished fragmented messages is used up."
    FRAGMENT_STALLED = (
        auto(),
        "A fragmented message of best effort or in a group did not go on for about a lease.",
    )
    FRAGMENT_SESSION_ENDED = (
        auto(),
        "The session, or the capture, ended before a fragmented message was complete.",
    )
    FRAGMENT_INVALID = auto(), "A reassembled message does not decode."
    SHM_UNREADABLE = (
        auto(),
        "A payload in shared memory was taken back by its owner, or a pointer to it is not valid.",
    )
    DATAGRAM_INVALID = auto(), "A datagram of a multicast group does not decode."
    FRAME_NOT_JOINED = auto(), "A FRAME of a node that is not a member of the group."
    MESSAGE_NOT_JOINED = auto(), "A transport message of a node that is not a member of the group."
    JOIN_OWN_ID = auto(), "A JOIN carries this node's own id."
    JOIN_CHANGED = auto(), "A member's JOIN differs from its earlier ones."
    JOIN_MEMBER_LIMIT = auto(), "A JOIN of a new member, and the group is full."
    JOIN_MISMATCH_VERSION = auto(), "A JOIN has another protocol version than this node."
    JOIN_MISMATCH_RESOLUTION = (
        auto(),
        "A JOIN has another resolution of sequence numbers than this node.",
    )
    JOIN_MISMATCH_BATCH_SIZE = auto(), "A JOIN has another batch size than this node."
    JOIN_MISMATCH_LANES = auto(), "A JOIN has QoS lanes and this node has not, or the reverse."
    JOIN_MISMATCH_ROLE = (
        auto(),
        "A JOIN of a client, or of a router at a router: they exchange nothing in groups.",
    )
    JOIN_MISMATCH_SN = auto(), "A JOIN has a sequence number above the agreed resolution."
    LINK_STATE_INVALID = auto(), "A list of link states does not decode."
    LINK_STATE_REFUSED = auto(), "A list of link states is not bytes, or is above the size limit."
    LINK_STATE_NODE_LIMIT = auto(), "A link state names more nodes than are kept for one neighbour."

    # ---- routing

    FACE_CLOSED = auto(), "A message of a session that routing has closed."
    UNEXPECTED_MESSAGE = auto(), "A message that is not a network message."
    UNKNOWN_KEY = (
        auto(),
        "A message names a key id that its sender has not declared, or an invalid key.",
    )
    TIMESTAMP_FUTURE = (
        auto(),
        "A timestamp is too far ahead of the clock, and the configuration says to drop it.",
    )
    TIMESTAMP_REPLACED = (
        auto(),
        "A timestamp too far ahead of the clock was replaced; the message was delivered.",
    )
    KEY_ID_REFUSED = (
        auto(),
        "A key id stands for another key, its key is not valid, or it is beyond the limits.",
    )
    KEY_ID_UNKNOWN = auto(), "A key id was undeclared that had not been declared."
    DECLARATION_UNKNOWN_KEY = auto(), "A declaration names an unknown key id or an invalid key."
    DECLARATION_ID_IN_USE = (
        auto(),
        "A declaration has an id that stands for another key; with an id above 0 its session was "
        "closed.",
    )
    DECLARATION_LIMIT = auto(), "A neighbour declared too much, and its session was closed."
    DECLARATION_UNKNOWN = auto(), "A declaration was taken back that had not been made."
    DECLARATION_LATE = auto(), "A declaration answers an interest that has ended."
    DECLARATION_IN_GROUP = (
        auto(),
        "A member of a multicast group declared a queryable or a token: neither works there.",
    )
    DECLARE_FINAL_UNEXPECTED = auto(), "A DECLARE_FINAL answers no interest of this node."
    INTEREST_REFUSED = (
        auto(),
        "An interest of a neighbour whose role has no interests answered here.",
    )
    INTEREST_UNKNOWN_KEY = auto(), "An interest names an unknown key id or an invalid key."
    INTEREST_LIMIT = auto(), "A neighbour has too many interests; its session was closed."
    INTEREST_ANSWER_LIMIT = (
        auto(),
        "A neighbour answered an interest with too many keys, and its session was closed.",
    )
    INTEREST_TIMEOUT = auto(), "The upstream node did not answer an interest in time."
    REQUEST_ID_IN_USE = auto(), "A query has the request id of one that is still open."
    REQUEST_UNKNOWN_KEY = auto(), "A query names an unknown key id or an invalid key."
    REQUEST_LIMIT = auto(), "A query got an error: its sender has too many that are open."
    QUERY_TIMEOUT = auto(), "A next hop did not answer a query in time."
    REPLY_UNKNOWN_QUERY = auto(), "A reply to a query that is not open here."
    REPLY_FINAL_UNKNOWN_QUERY = auto(), "A RESPONSE_FINAL for a query that is not open here."
    REPLY_UNKNOWN_KEY = auto(), "A reply names an unknown key id or an invalid key."

    # ---- the session API

    HANDLER_FULL = auto(), "A subscriber's handler had no room, or was closed unread."
    REPLY_LATE = auto(), "A reply came after the end of its get."
    REPLY_DISJOINT = auto(), "A reply's key does not intersect the key of its get."
    REPLY_LIMIT = auto(), "Too many replies of one get wait for a reader."
    GET_LIMIT = auto(), "A get was refused: too many are open."
    QUERY_LIMIT = auto(), "A query got an error: too many wait for their answer."
    REMOTE_SUBSCRIBER_LIMIT = (
        auto(),
        "A subscriber of another node was not noted for matching: too many are known.",
    )
    REMOTE_QUERYABLE_LIMIT = (
        auto(),
        "A queryable of another node was not noted for matching: too many are known.",
    )
    REMOTE_TOKEN_LIMIT = (
        auto(),
        "A liveliness token of another node was not noted: too many are known.",
    )
