"""Drop reasons: one short, stable name for each cause of a message that was not delivered.

Every counter of drops in this package is keyed by these names, which may serve as labels of a
monitoring system. Does not count anything: counters.py, routing and the API do.
"""

from enum import StrEnum


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

    CONGESTION_TIMEOUT = "congestion_timeout", "No room in the lane within the time to wait."
    CONGESTION_PERSISTS = (
        "congestion_persists",
        "No room in the lane, and none has become free since the drop before.",
    )
    CONGESTION_NO_WAIT = (
        "congestion_no_wait",
        "No room in the lane, and the sending thread must not wait.",
    )
    CONGESTION_BACKLOG = (
        "congestion_backlog",
        "The backlog of messages that must not be dropped is full.",
    )
    CONGESTION_FRAGMENTS = (
        "congestion_fragments",
        "A fragmented message that may be dropped made no progress.",
    )
    CONGESTION_GROUP = "congestion_group", "No room in the lane of a multicast group."
    CONTROL_BACKLOG = "control_backlog", "Too many transport control messages wait to be sent."
    SESSION_CLOSED = "session_closed", "The session to the receiver had ended."
    MESSAGE_TOO_LARGE = "message_too_large", "The message does not fit the receiving session."
    ENCODE_FAILED = "encode_failed", "The message cannot be encoded."
    GROUP_SOCKET_FULL = "group_socket_full", "The socket of a multicast group had no room."
    GROUP_LINK_FAILED = "group_link_failed", "The socket of a multicast group failed."

    # ---- receiving

    FRAGMENT_ABANDONED = (
        "fragment_abandoned",
        "The sender gave up a fragmented message (the Drop marker).",
    )
    FRAGMENT_RESTARTED = (
        "fragment_restarted",
        "A fragmented message began before the one before it was complete.",
    )
    FRAGMENT_FIRST_MISSING = (
        "fragment_first_missing",
        "A fragment belongs to a message whose first fragment was not received.",
    )
    FRAGMENT_MISSING = "fragment_missing", "A fragment between two others was not received."
    FRAGMENT_TOO_LARGE = (
        "fragment_too_large",
        "A fragmented message is above the limit of bytes or of fragments.",
    )
    FRAGMENT_NO_MEMORY = (
        "fragment_no_memory",
        "The memory for unfinished fragmented messages is used up.",
    )
    FRAGMENT_STALLED = "fragment_stalled", "A fragmented message did not go on for about a lease."
    FRAGMENT_SESSION_ENDED = (
        "fragment_session_ended",
        "The session, or the capture, ended before a fragmented message was complete.",
    )
    FRAGMENT_INVALID = "fragment_invalid", "A reassembled message does not decode."
    DATAGRAM_INVALID = "datagram_invalid", "A datagram of a multicast group does not decode."
    FRAME_NOT_JOINED = "frame_not_joined", "A FRAME of a node that is not a member of the group."
    MESSAGE_NOT_JOINED = (
        "message_not_joined",
        "A transport message of a node that is not a member of the group.",
    )
    JOIN_OWN_ID = "join_own_id", "A JOIN carries this node's own id."
    JOIN_CHANGED = "join_changed", "A member's JOIN differs from its earlier ones."
    JOIN_MEMBER_LIMIT = "join_member_limit", "A JOIN of a new member, and the group is full."
    JOIN_MISMATCH_VERSION = (
        "join_mismatch_version",
        "A JOIN has another protocol version than this node.",
    )
    JOIN_MISMATCH_RESOLUTION = (
        "join_mismatch_resolution",
        "A JOIN has another resolution of sequence numbers than this node.",
    )
    JOIN_MISMATCH_BATCH_SIZE = (
        "join_mismatch_batch_size",
        "A JOIN has another batch size than this node.",
    )
    JOIN_MISMATCH_LANES = (
        "join_mismatch_lanes",
        "A JOIN has QoS lanes and this node has not, or the reverse.",
    )
    JOIN_MISMATCH_SN = (
        "join_mismatch_sn",
        "A JOIN has a sequence number above the agreed resolution.",
    )
    LINK_STATE_INVALID = "link_state_invalid", "A list of link states does not decode."
    LINK_STATE_REFUSED = (
        "link_state_refused",
        "A list of link states is not bytes, or is above the size limit.",
    )
    LINK_STATE_NODE_LIMIT = (
        "link_state_node_limit",
        "A link state names more nodes than are kept for one neighbour.",
    )

    # ---- routing

    FACE_CLOSED = "face_closed", "A message of a session that routing has closed."
    UNEXPECTED_MESSAGE = "unexpected_message", "A message that is not a network message."
    UNKNOWN_KEY = (
        "unknown_key",
        "A message names a key id that its sender has not declared, or an invalid key.",
    )
    TIMESTAMP_FUTURE = (
        "timestamp_future",
        "A timestamp is too far ahead of the clock, and the configuration says to drop it.",
    )
    TIMESTAMP_REPLACED = (
        "timestamp_replaced",
        "A timestamp too far ahead of the clock was replaced; the message was delivered.",
    )
    KEY_ID_REFUSED = "key_id_refused", "A key id is beyond the limits, or its key is not valid."
    KEY_ID_UNKNOWN = "key_id_unknown", "A key id was undeclared that had not been declared."
    DECLARATION_UNKNOWN_KEY = (
        "declaration_unknown_key",
        "A declaration names an unknown key id or an invalid key.",
    )
    DECLARATION_ID_IN_USE = (
        "declaration_id_in_use",
        "A declaration has an id that stands for another key.",
    )
    DECLARATION_LIMIT = "declaration_limit", "A neighbour declared more than is kept for it."
    DECLARATION_UNKNOWN = (
        "declaration_unknown",
        "A declaration was taken back that had not been made.",
    )
    DECLARATION_LATE = "declaration_late", "A declaration answers an interest that has ended."
    DECLARE_FINAL_UNEXPECTED = (
        "declare_final_unexpected",
        "A DECLARE_FINAL answers no interest of this node.",
    )
    INTEREST_REFUSED = (
        "interest_refused",
        "An interest of a neighbour whose role has no interests answered here.",
    )
    INTEREST_UNKNOWN_KEY = (
        "interest_unknown_key",
        "An interest names an unknown key id or an invalid key.",
    )
    INTEREST_LIMIT = "interest_limit", "A neighbour has more interests than are kept for it."
    INTEREST_ANSWER_LIMIT = (
        "interest_answer_limit",
        "An interest has more answers than are passed on.",
    )
    INTEREST_TIMEOUT = "interest_timeout", "The upstream node did not answer an interest in time."
    REQUEST_ID_IN_USE = (
        "request_id_in_use",
        "A query has the request id of one that is still open.",
    )
    REQUEST_UNKNOWN_KEY = (
        "request_unknown_key",
        "A query names an unknown key id or an invalid key.",
    )
    REQUEST_LIMIT = "request_limit", "A neighbour has more open queries than are kept for it."
    QUERY_TIMEOUT = "query_timeout", "A next hop did not answer a query in time."
    REPLY_UNKNOWN_QUERY = "reply_unknown_query", "A reply to a query that is not open here."
    REPLY_FINAL_UNKNOWN_QUERY = (
        "reply_final_unknown_query",
        "A RESPONSE_FINAL for a query that is not open here.",
    )
    REPLY_UNKNOWN_KEY = "reply_unknown_key", "A reply names an unknown key id or an invalid key."

    # ---- the session API

    HANDLER_FULL = "handler_full", "A subscriber's handler had no room, or was closed unread."
    REPLY_LATE = "reply_late", "A reply came after the end of its get."
    REPLY_DISJOINT = "reply_disjoint", "A reply's key does not intersect the key of its get."
    REPLY_LIMIT = "reply_limit", "Too many replies of one get wait for a reader."
    GET_LIMIT = "get_limit", "A get was refused: too many are open."
    QUERY_LIMIT = "query_limit", "A query got an error: too many wait for their answer."
    REMOTE_SUBSCRIBER_LIMIT = (
        "remote_subscriber_limit",
        "A subscriber of another node was not noted for matching: too many are known.",
    )
    REMOTE_QUERYABLE_LIMIT = (
        "remote_queryable_limit",
        "A queryable of another node was not noted for matching: too many are known.",
    )
    REMOTE_TOKEN_LIMIT = (
        "remote_token_limit",
        "A liveliness token of another node was not noted: too many are known.",
    )
