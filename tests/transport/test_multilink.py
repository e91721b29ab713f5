"""The handshake of MultiLink, and which of several links a message takes."""

import hashlib
from collections.abc import Callable

import pytest

from zenlake.errors import SessionRefused
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.establishment import Acceptor, Opener
from zenlake.transport.link_qos import LinkQos, choose_link
from zenlake.transport.multilink import MultiLinkKey, first_sn
from zenlake.transport.offer import Agreement, Offer
from zenlake.transport.outbox import KEPT_BYTES, Outbox, PushResult
from zenlake.wire.batch import read_batch
from zenlake.wire.enums import WirePriority, WireWhatAmI
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.framing import Framing
from zenlake.wire.init import Init
from zenlake.wire.open import Open
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import BLOCK, QoS
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

MTU = 65535
OPENER, ACCEPTOR = WireZenohId(b"\x0a\x01"), WireZenohId(b"\x0b\x02")


def chance(seed: bytes) -> Callable[[int], bytes]:
    """Return a source of bytes that are the same in every run."""
    count = 0

    def draw(size: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_128(seed + count.to_bytes(4, "little")).digest(size)

    return draw


ENTROPY = chance(b"multilink")
KEY, OTHER_KEY = MultiLinkKey(ENTROPY), MultiLinkKey(ENTROPY)


def sides(ours: MultiLinkKey | None, theirs: MultiLinkKey | None) -> tuple[Opener, Acceptor]:
    opener = Opener(Offer(zid=OPENER, whatami=WireWhatAmI.PEER), ENTROPY, mtu=MTU, multilink=ours)
    acceptor = Acceptor(
        Offer(zid=ACCEPTOR, whatami=WireWhatAmI.PEER), ENTROPY, mtu=MTU, multilink=theirs
    )
    return opener, acceptor


def agreed(ours: MultiLinkKey | None, theirs: MultiLinkKey | None) -> tuple[Agreement, Agreement]:
    opener, acceptor = sides(ours, theirs)
    init_ack = acceptor.receive(opener.first())
    assert init_ack is not None
    open_syn = opener.receive(init_ack)
    assert open_syn is not None
    open_ack = acceptor.receive(open_syn)
    assert open_ack is not None
    opener.receive(open_ack)
    assert opener.agreement is not None
    assert acceptor.agreement is not None
    return opener.agreement, acceptor.agreement


def test_each_side_learns_the_key_of_the_other() -> None:
    opener, acceptor = agreed(KEY, OTHER_KEY)
    assert opener.multilink == OTHER_KEY.public
    assert acceptor.multilink == KEY.public


def test_all_links_of_two_nodes_start_at_the_same_sequence_numbers() -> None:
    first, second = agreed(KEY, OTHER_KEY), agreed(KEY, OTHER_KEY)
    assert first[0].differs(second[0]) is None
    assert first[1].differs(second[1]) is None
    assert first[0].initial_sn == first_sn(OPENER, ACCEPTOR, first[0].sn_mask)
    assert first[0].initial_sn == first[1].peer_initial_sn


def test_a_further_link_with_another_key_differs() -> None:
    assert agreed(KEY, OTHER_KEY)[1].differs(agreed(OTHER_KEY, OTHER_KEY)[1]) == "multilink"


@pytest.mark.parametrize("ours", [KEY, None])
def test_one_side_alone_gets_one_link(ours: MultiLinkKey | None) -> None:
    theirs = KEY if ours is None else None
    assert [side.multilink for side in agreed(ours, theirs)] == [None, None]


@pytest.mark.parametrize("nonce", [None, b"", b"\x40" + bytes(64), b"\x02ab"])
def test_an_opener_that_cannot_decrypt_the_nonce_is_refused(nonce: bytes | None) -> None:
    opener, acceptor = sides(KEY, OTHER_KEY)
    init_ack = acceptor.receive(opener.first())
    assert isinstance(init_ack, Init)
    open_syn = opener.receive(init_ack)
    assert isinstance(open_syn, Open)
    open_syn.multilink = nonce
    with pytest.raises(SessionRefused, match="multi-link"):
        acceptor.receive(open_syn)


@pytest.mark.parametrize("key", [b"", b"\x01\x03\x01\x03", b"\x40" + bytes(64) + b"\x01\x03"])
def test_a_key_that_is_not_valid_is_refused(key: bytes) -> None:
    opener, acceptor = sides(KEY, OTHER_KEY)
    syn = opener.first()
    syn.multilink = key
    with pytest.raises(SessionRefused, match="multi-link"):
        acceptor.receive(syn)


@pytest.mark.parametrize("compression", [False, True])
def test_messages_that_wait_for_a_lost_link_are_counted(compression: bool) -> None:
    outbox = Outbox(
        batch_size=2000,
        framing=Framing.STREAM,
        sn_mask=0xFFFF,
        first_sns=[(0, 0)] * 8,
        qos=True,
        compression=compression,
    )
    assert outbox.count_unsent() == 0
    for size in (10, 900, 900, 900, 5000):  # In an open batch, in sealed ones, in fragments.
        push = Push(WireExpr(0, "a"), Put(bytes(size)))
        assert outbox.push(push) is PushResult.DONE
    assert outbox.push_beyond(Push(WireExpr(0, "a"), Put(b"last")), BLOCK, True, 0.0)
    assert (
        outbox.push(
            Push(WireExpr(0, "a"), Put(b"x"), qos=QoS(WirePriority.BACKGROUND)), reliable=False
        )
        is PushResult.DONE
    )
    assert outbox.count_unsent() == 7


def link_outbox(framing: Framing = Framing.STREAM, batch_size: int = 2000) -> Outbox:
    sns = [(0, 0)] * 8
    return Outbox(batch_size=batch_size, framing=framing, sn_mask=0xFFFF, first_sns=sns, qos=True)


def control(payload: bytes) -> Push:
    return Push(WireExpr(0, "a"), Put(payload), qos=QoS(WirePriority.CONTROL))


def pulled(outbox: Outbox, framing: Framing = Framing.STREAM) -> list[bytes]:
    """Return the batches that leave, without their prefixes."""
    return [bytes(batch)[framing:] for batch in iter(lambda: outbox.pull(0.0), None)]


@pytest.mark.parametrize("framing", [Framing.STREAM, Framing.DATAGRAM])
def test_the_first_lane_goes_on_over_another_link_with_the_same_numbers(framing: Framing) -> None:
    lost, other = link_outbox(), link_outbox(framing)
    other.share_sequences(lost)
    for outbox in (lost, other):
        outbox.keep_first_lane()
    lost.push(control(b"sent"))
    lost.push(Push(WireExpr(0, "a"), Put(b"data")))
    sent, data = pulled(lost)
    lost.push(control(b"open"))
    lost.push(control(bytes(5000)))
    assert lost.push_beyond(control(b"beyond"), BLOCK, True, 0.0)
    bodies = lost.take_first_lane(0.0)
    assert bodies[0] == sent
    assert data not in bodies
    assert not lost.waiting
    other.send_again(bodies)
    other.push(control(b"after"))
    found = pulled(other, framing)
    assert found[:-1] == bodies
    messages = [message for body in found for message in read_batch(body)]
    numbers = [m.sn for m in messages if isinstance(m, (Frame, Fragment))]
    assert numbers == [0, 1, 2, 3, 4, 6, 7]  # A number is skipped behind fragments.
    assert [m.messages for m in messages if isinstance(m, Frame)][-1] == [control(b"after")]


def test_batches_too_large_for_the_other_link_are_counted() -> None:
    lost, other = link_outbox(), link_outbox(batch_size=500)
    other.share_sequences(lost)
    lost.push(control(b"small"))
    small = lost.take_first_lane(0.0)
    lost.push(control(bytes(800)))
    lost.push(control(bytes(800)))
    large = lost.take_first_lane(0.0)
    other.send_again(small + large)
    assert pulled(other) == small
    assert other.counters.send_dropped == {DropReason.LINK_LOST: 2}


def test_kept_batches_are_limited() -> None:
    outbox = link_outbox()
    outbox.keep_first_lane()
    last = b""
    for number in range(3 * KEPT_BYTES // 1000):
        outbox.push(control(number.to_bytes(4, "little") * 250))
        (last,) = pulled(outbox)
    kept = outbox.take_first_lane(0.0)
    assert kept[-1] == last
    assert KEPT_BYTES - 2000 < sum(map(len, kept)) <= KEPT_BYTES


def test_a_held_lane_takes_messages_and_sends_none_until_it_is_released() -> None:
    before, after = link_outbox(), link_outbox()
    after.share_sequences(before)
    data, high = Put(b"data"), QoS(WirePriority.DATA_HIGH)
    before.push(Push(WireExpr(0, "a"), data))
    assert before.is_numbered(QoS())
    after.hold(QoS())
    assert not after.is_idle(QoS())
    after.push(Push(WireExpr(0, "a"), data))
    after.push(Push(WireExpr(0, "a"), Put(bytes(5000))))
    assert after.push_beyond(Push(WireExpr(0, "a"), data), QoS(), True, 0.0)
    assert not after.is_numbered(QoS())
    assert not after.give_up_stale(10.0)
    assert not after.waiting
    assert pulled(after) == []
    after.push(Push(WireExpr(0, "b"), data, qos=high))
    assert len(pulled(after)) == 1
    assert after.count_unsent() == 3
    earlier = pulled(before)
    after.release(QoS())
    messages = [message for body in earlier + pulled(after) for message in read_batch(body)]
    numbers = [m.sn for m in messages if isinstance(m, (Frame, Fragment))]
    assert numbers == [0, 1, 2, 3, 4, 6]  # A number is skipped behind fragments.
    assert after.is_idle(QoS())


def test_the_first_lane_of_a_lost_link_goes_on_though_it_was_held() -> None:
    lost = link_outbox()
    lost.keep_first_lane()
    lost.hold(QoS(WirePriority.CONTROL))
    lost.push(control(b"held"))
    (body,) = lost.take_first_lane(0.0)
    assert [m.messages for m in read_batch(body) if isinstance(m, Frame)] == [[control(b"held")]]


RELIABLE, BEST_EFFORT = True, False

CHOICES = [
    ([((0, 1), True), ((1, 2), True), ((0, 1), False)], RELIABLE, 0, 0),
    ([((0, 2), True), ((0, 1), True)], RELIABLE, 0, 1),
    ([((0, 1), False), (None, True)], RELIABLE, 0, 1),
    ([(None, False)], RELIABLE, 0, 0),
    ([((1, 3), True), ((4, 7), True)], RELIABLE, 5, 1),
    ([((1, 3), True), ((4, 7), True)], RELIABLE, 0, 0),
    ([(None, True), (None, False)], BEST_EFFORT, 5, 1),
]
"Links as (priorities, reliable), a message, and the link that it takes in Rust's `select`."


@pytest.mark.parametrize(("links", "reliable", "priority", "expected"), CHOICES)
def test_a_message_takes_the_link_that_suits_it_best(
    links: list[tuple[tuple[int, int] | None, bool]], reliable: bool, priority: int, expected: int
) -> None:
    assert choose_link([LinkQos(*link) for link in links], reliable, priority) == expected
