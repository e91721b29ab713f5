"""The handshake of shared memory: what is not right falls back to the network, or is refused."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.support.processes import python_environment
from zenlake.errors import AuthError
from zenlake.link.sockets import StreamLink
from zenlake.shm import native
from zenlake.shm import segment as segment_module
from zenlake.shm.handshake import (
    COUNTERS,
    COUNTERS_AT,
    HEAD,
    PRIORITIES,
    PROTOCOLS,
    SEGMENT_BYTES,
    VERSION,
    OwnSegment,
    ShmSteps,
)
from zenlake.shm.segment import Segment
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.locator import Locator


def numbers(*values: int) -> bytes:
    w = ByteWriter()
    for value in values:
        w.zint("number", value)
    return bytes(w.out)


@dataclass
class Pair:
    """The segments and steps of two nodes."""

    own: OwnSegment
    other: OwnSegment
    opener: ShmSteps
    acceptor: ShmSteps

    def agree(self) -> None:
        """All four messages, as they are."""
        ack = self.acceptor.init_ack(self.opener.init_syn())
        syn = self.opener.open_syn(ack)
        self.opener.take_open_ack(self.acceptor.open_ack(syn))


@pytest.fixture
def pair() -> Iterator[Pair]:
    own, other = OwnSegment(os.urandom), OwnSegment(os.urandom)
    opener, acceptor = ShmSteps(own, reliable=True), ShmSteps(other, reliable=True)
    yield Pair(own, other, opener, acceptor)
    for steps in (opener, acceptor):
        steps.close(lost=True)
    for node in (own, other):
        node.segment.close()


def test_two_nodes_agree(pair: Pair) -> None:
    pair.agree()
    for steps, sender in ((pair.opener, pair.acceptor), (pair.acceptor, pair.opener)):
        assert steps.agreed
        assert steps.declined is None
        assert len(steps.sent) == PRIORITIES
        assert steps.peer is not None
        assert steps.peer.reads_posix
        assert len(set(steps.received)) == len(sender.sent) == PRIORITIES


def test_a_counter_is_one_word_of_both(pair: Pair) -> None:
    pair.agree()
    counter, address = pair.opener.sent[3], pair.acceptor.received[3]
    add = native.load().add
    add(counter.address, 1)
    number = counter.next()
    assert not counter.delivered(number)
    assert not pair.own.is_delivered
    add(address, -1)
    assert counter.delivered(number)
    assert pair.own.is_delivered


def test_links_that_lose_messages_have_no_counters() -> None:
    own, other = OwnSegment(os.urandom), OwnSegment(os.urandom)
    opener, acceptor = ShmSteps(own, reliable=False), ShmSteps(other, reliable=False)
    Pair(own, other, opener, acceptor).agree()
    assert opener.agreed
    assert acceptor.agreed
    assert not any((opener.sent, acceptor.sent, opener.received, acceptor.received))
    for node in (own, other):
        node.segment.close()


READERS = """
import os, sys
from zenlake.shm import native
from zenlake.shm.handshake import OwnSegment, ShmSteps

own, other = OwnSegment(os.urandom), OwnSegment(os.urandom)
opener, acceptor = ShmSteps(own, reliable=False), ShmSteps(other, reliable=False)

def loaded():
    return native._native is not None and "zenlake.shm.views" in sys.modules

ack = acceptor.init_ack(opener.init_syn())
before = loaded()
opener.open_syn(ack)
print(before, loaded())
opener.close(lost=True)
acceptor.close(lost=True)
own.segment.close()
other.segment.close()
"""


@pytest.mark.process
def test_what_reads_a_buffer_is_loaded_before_a_link_that_loses_messages_opens() -> None:
    """A Rust node takes the buffer back after 0.1 s there; loading may take longer."""
    command = [sys.executable, "-c", READERS]
    assert subprocess.run(
        command, env=python_environment(), capture_output=True, text=True, timeout=60, check=False
    ).stdout.split() == ["False", "True"]


# ---- segments that are not as they should be


def other_head(**fields: int) -> Callable[[Segment], None]:
    def change(segment: Segment) -> None:
        names = ("count", "challenge", "version")
        now = dict(zip(names, HEAD.unpack_from(segment.map), strict=True))
        HEAD.pack_into(segment.map, 0, *(now | fields).values())

    return change


def resized(size: int) -> Callable[[Segment], None]:
    return lambda segment: os.truncate(segment_module._path(segment.number), size)


BAD: dict[str, tuple[Callable[[Segment], object], str]] = {
    "an earlier version": (other_head(version=1), "is of version 1, this is 2"),
    "a later version": (other_head(version=3), "is of version 3, this is 2"),
    "too many protocols": (other_head(count=257), "has 257 protocols, more than 256"),
    "longer": (resized(SEGMENT_BYTES + 4096), "another Zenoh version"),
    "empty": (resized(0), "another Zenoh version"),
    "gone": (lambda segment: segment_module._path(segment.number).unlink(), "No such file"),
    "not readable": (
        lambda segment: os.chown(segment_module._path(segment.number), 12345, -1),
        "belongs to another user",
    ),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("side", ["opener", "acceptor"])
def test_another_segment_falls_back_to_the_network(pair: Pair, side: str, name: str) -> None:
    change, why = BAD[name]
    if name == "not readable" and os.geteuid():
        pytest.skip("needs root: a file is given to another user")
    whose = pair.own if side == "opener" else pair.other
    change(whose.segment)
    pair.agree()
    assert not pair.opener.agreed
    assert not pair.acceptor.agreed
    judge, other = pair.acceptor, pair.opener
    if side == "acceptor":
        judge, other = other, judge
    assert judge.declined is not None
    assert why in judge.declined
    assert other.declined in (
        "the peer does not offer it, or cannot read this node's segment",
        "the peer cannot read this node's segment",
    )


def test_a_peer_with_other_protocols_gets_no_pointers(pair: Pair) -> None:
    PROTOCOLS.pack_into(pair.other.segment.map, HEAD.size, 7, *(0,) * 255)
    pair.agree()
    assert pair.opener.agreed
    assert pair.opener.peer is not None
    assert not pair.opener.peer.reads_posix


# ---- messages that are not as they should be


def test_a_node_never_tells_its_own_challenge(pair: Pair) -> None:
    """A peer that maps nothing could return it, and would pass for a node of this host."""
    w = ByteWriter()
    w.zint("segment", pair.other.segment.number)
    assert pair.acceptor.init_ack(bytes(w.out)) is None
    assert pair.acceptor.declined == "the peer names this node's own segment"


@pytest.mark.parametrize(
    ("local", "remote", "address", "same"),
    [
        ("tcp/127.0.0.1:1", "tcp/127.0.0.1:2", "127.0.0.1", True),
        ("tcp/[::1]:1", "tcp/[::1]:2", "::1", True),
        ("tcp/[::ffff:127.0.0.1]:1", "tcp/[::ffff:127.0.0.1]:2", "::ffff:127.0.0.1", True),
        ("tcp/192.0.2.1:1", "tcp/192.0.2.1:2", "192.0.2.1", True),
        ("tcp/[2001:db8::1]:1", "tcp/[2001:db8::1]:2", "2001:db8::1", True),
        ("tcp/192.0.2.1:1", "tcp/192.0.2.2:2", "192.0.2.2", False),
        ("tcp/[2001:db8::1]:1", "tcp/[2001:db8::2]:2", "2001:db8::2", False),
        ("unixsock-stream/a", "unixsock-stream/b", "unixsock-stream", True),
        ("vsock/2:1", "vsock/3:1", "vsock", False),
    ],
)
def test_a_link_knows_whether_its_peer_is_on_this_host(
    local: str, remote: str, address: str, same: bool
) -> None:
    class Link(StreamLink):
        def __init__(self) -> None:
            self.local, self.remote, self.address = Locator(local), Locator(remote), address
            self.protocol = self.remote.protocol

    assert Link().same_host is same


@pytest.mark.parametrize("garbage", [b"", b"\x80", b"\xff" * 12, b"\xff" * 40])
def test_garbage_in_init_falls_back_to_the_network(pair: Pair, garbage: bytes) -> None:
    assert pair.acceptor.init_ack(garbage) is None
    assert pair.acceptor.declined
    assert pair.opener.open_syn(garbage) is None
    assert pair.opener.declined
    pair.opener.take_open_ack(None)
    assert pair.acceptor.open_ack(None) is None
    assert not pair.opener.agreed
    assert not pair.acceptor.agreed


def test_a_peer_that_offers_nothing(pair: Pair) -> None:
    assert pair.acceptor.init_ack(None) is None
    assert pair.acceptor.declined == "the peer does not offer it"
    assert pair.opener.open_syn(None) is None
    assert pair.opener.declined is not None


def test_a_peer_that_read_another_challenge_has_another_dev_shm(pair: Pair) -> None:
    answer = numbers(pair.own.challenge ^ 1, pair.other.segment.number)
    assert pair.opener.open_syn(answer) is None
    assert pair.opener.declined is not None
    assert "another /dev/shm" in pair.opener.declined


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda c: numbers(c ^ 1) + b"\x01" + bytes(range(8)), "another challenge"),
        (lambda c: b"", "OpenSyn"),
        (lambda c: numbers(c), "OpenSyn"),
        (lambda c: numbers(c) + b"\x01" + bytes(range(7)), "OpenSyn"),
        (lambda c: numbers(c) + b"\x01" + numbers(*range(7), COUNTERS), "OpenSyn"),
        (lambda c: numbers(c) + b"\x01" + numbers(*range(7), 1 << 40), "OpenSyn"),
    ],
)
def test_an_opener_that_believes_in_memory_that_is_not_common_is_refused(
    pair: Pair, answer: Callable[[int], bytes], why: str
) -> None:
    pair.acceptor.init_ack(pair.opener.init_syn())
    with pytest.raises(AuthError, match=why):
        pair.acceptor.open_ack(answer(pair.other.challenge))
    assert not pair.acceptor.agreed


def test_an_acceptor_whose_counters_are_out_of_range_is_refused(pair: Pair) -> None:
    pair.opener.open_syn(pair.acceptor.init_ack(pair.opener.init_syn()))
    with pytest.raises(AuthError, match="OpenAck"):
        pair.opener.take_open_ack(b"\x01" + numbers(*range(7), COUNTERS))
    assert not pair.opener.agreed


def test_an_acceptor_that_declines_at_last(pair: Pair) -> None:
    pair.opener.open_syn(pair.acceptor.init_ack(pair.opener.init_syn()))
    pair.opener.take_open_ack(None)
    assert not pair.opener.agreed
    assert pair.opener.declined == "the peer declined at last"


def test_the_largest_counter_is_inside_the_segment(pair: Pair) -> None:
    pair.opener.open_syn(pair.acceptor.init_ack(pair.opener.init_syn()))
    pair.opener.take_open_ack(b"\x01" + numbers(*range(7), COUNTERS - 1))
    assert pair.opener.agreed
    last = pair.opener.received[-1]
    assert pair.opener.peer is not None
    start = pair.opener.peer._segment.address
    assert last == start + COUNTERS_AT + 4 * (COUNTERS - 1) == start + SEGMENT_BYTES - 4


# ---- counters


def test_sessions_beyond_the_counters_go_without(pair: Pair) -> None:
    leased = []
    while (counters := pair.other.lease()) is not None:
        leased.append(counters)
    assert len(leased) == COUNTERS // PRIORITIES == 351
    pair.agree()
    assert not pair.opener.agreed
    assert not pair.acceptor.agreed
    assert pair.acceptor.declined == "351 sessions of this node have it already"
    pair.other.give_back(leased[0], lost=False)
    assert pair.other.lease() is not None


def test_a_session_that_ends_gives_its_counters_back(pair: Pair) -> None:
    free = len(pair.own._free)
    pair.agree()
    assert len(pair.own._free) == free - PRIORITIES
    counters = pair.opener.sent
    for _ in range(2):
        pair.opener.close(lost=False)
    assert len(pair.own._free) == free
    assert all(counter.delivered(1000) for counter in counters)


def test_a_dropped_message_does_not_make_others_delivered(pair: Pair) -> None:
    pair.agree()
    counter = pair.opener.sent[0]
    add = native.load().add

    def send() -> int:
        add(counter.address, 1)
        return counter.next()

    kept = [send() for _ in range(3)]
    send()
    counter.cancel()
    assert not any(counter.delivered(number) for number in kept)
    kept.append(send())
    for taken in range(4):
        assert [counter.delivered(number) for number in kept] == [
            place < taken for place in range(4)
        ]
        add(counter.address, -1)
    assert all(counter.delivered(number) for number in kept)


def test_a_reader_that_is_gone_leaves_nothing_to_wait_for(pair: Pair) -> None:
    pair.agree()
    native.load().add(pair.opener.sent[0].address, 5)
    assert not pair.own.is_delivered
    pair.opener.close(lost=True)
    assert pair.own.is_delivered


def test_the_layout_is_that_of_version_2(pair: Pair) -> None:
    count, challenge, version = HEAD.unpack_from(pair.own.segment.map)
    assert (count, challenge, version) == (1, pair.own.challenge, VERSION)
    assert pair.own.segment.size == 12_288
