"""Counters of one session or group: messages, batches, bytes, and drops by reason.

Does not decide anything: the outbox, the lanes and the runtime count here.
"""

from dataclasses import dataclass, field, fields

from zenlake.transport.drop_reason import DropReason


@dataclass(slots=True)
class Counters:
    """Counters since the session or group was opened."""

    sent_messages: int = 0
    sent_batches: int = 0
    sent_bytes: int = 0
    received_frames: int = 0
    received_batches: int = 0
    received_bytes: int = 0
    ignored: int = 0
    "Received messages without a meaning in an open session: INIT, OPEN, JOIN, transport OAM."
    send_dropped: dict[DropReason, int] = field(default_factory=dict)
    "Messages dropped before they were sent, by reason."
    receive_dropped: dict[DropReason, int] = field(default_factory=dict)
    "Received messages and fragments that were dropped, by reason."

    def add(self, other: "Counters") -> None:
        """Add the counts of another link of the same session."""
        for count in fields(self):
            mine, theirs = getattr(self, count.name), getattr(other, count.name)
            if isinstance(mine, dict):
                for reason, number in dict(theirs).items():
                    mine[reason] = mine.get(reason, 0) + number
            else:
                setattr(self, count.name, mine + theirs)

    def drop_sent(self, reason: DropReason, count: int = 1) -> None:
        if count:
            self.send_dropped[reason] = self.send_dropped.get(reason, 0) + count

    def drop_received(self, reason: DropReason, count: int = 1) -> None:
        self.receive_dropped[reason] = self.receive_dropped.get(reason, 0) + count
