"""What a session counts: everything that went out or came in, and everything that did not.

Knows names and numbers. A drop without a name here does not exist.
"""

from dataclasses import dataclass, field

from zenlake.transport.drop_reason import DropReason


@dataclass(slots=True)
class Counters:
    """Of one session or group, since it opened."""

    sent_messages: int = 0
    sent_batches: int = 0
    sent_bytes: int = 0
    received_frames: int = 0
    received_batches: int = 0
    received_bytes: int = 0
    ignored: int = 0
    "Messages that mean nothing in an open session: INIT, OPEN, JOIN, transport OAM."
    send_dropped: dict[DropReason, int] = field(default_factory=dict)
    "Messages given up before they were sent, by reason."
    receive_dropped: dict[DropReason, int] = field(default_factory=dict)
    "Messages and fragments given up after they came in, by reason."

    def drop_sent(self, reason: DropReason) -> None:
        self.send_dropped[reason] = self.send_dropped.get(reason, 0) + 1

    def drop_received(self, reason: DropReason) -> None:
        self.receive_dropped[reason] = self.receive_dropped.get(reason, 0) + 1
