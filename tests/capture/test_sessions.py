"""Zenoh in a captured stream: keys, fragments, forms of batches, datagrams, scouting."""

from pathlib import Path

import pytest

from tests.support.capture_files import (
    ACCEPTOR,
    ENDS,
    OPENER,
    PLAIN,
    Form,
    Write,
    capture,
    declare,
    encoded,
    fragments,
    frame,
    handshake,
    ip,
    pcap,
    plain,
    push,
    rows_of,
    talk,
    udp,
    undeclare,
)
from zenlake.transport.drop_reason import DropReason
from zenlake.wire.batch import write_batch, write_scouting
from zenlake.wire.close import Close
from zenlake.wire.delete import Del
from zenlake.wire.encoding import WireEncoding
from zenlake.wire.entity import WireEntityId, WireSourceInfo
from zenlake.wire.enums import Mapping, WirePriority, WireWhatAmI
from zenlake.wire.err import Err
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.hello import WireHello
from zenlake.wire.join import Join
from zenlake.wire.keepalive import KeepAlive
from zenlake.wire.locator import Locator
from zenlake.wire.network import NetworkMessage
from zenlake.wire.push import Push
from zenlake.wire.put import Put, Slice
from zenlake.wire.qos import QoS
from zenlake.wire.query import WireQuery
from zenlake.wire.reply import WireReply
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.response_final import ResponseFinal
from zenlake.wire.scout import WireScout
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.wireexpr import WireExpr

FORMS = {
    "plain": PLAIN,
    "compressed": Form(compression=True),
    "low latency": Form(low_latency=True),
}
GROUP = (("10.0.0.1", 7446), ("224.0.0.224", 7446))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_key_means_what_was_declared_before_it(tmp_path: Path, form: Form) -> None:
    writes: list[Write] = [
        *handshake(form),
        (0, frame(1, push(1, "/a", b"0"), declare(1, "one"), push(1, "/b", b"1"), form=form)),
        (1, frame(1, push(1, "/c", b"2", Mapping.RECEIVER), push(1, "/d", b"3"), form=form)),
        (0, frame(2, undeclare(1), push(1, "/e", b"4"), form=form)),
        (1, frame(2, push(1, "/f", b"5", Mapping.RECEIVER), form=form)),
        (0, frame(3, declare(1, "two"), push(1, "", b"6"), form=form)),
        (1, frame(3, declare(1, "other"), push(1, "/g", b"7"), form=form)),
        (1, frame(4, push(1, "/h", b"8", Mapping.RECEIVER), form=form)),
    ]
    found = rows_of(tmp_path, capture(writes))
    keys = {row["payload"]: row["key"] for row in found.rows if row["body"] == "put"}
    assert list(keys.values()) == [
        *(None, "one/b", "one/c", None, None, None, "two", "other/g", "two/h")
    ]
    unknown = [row for row in found.rows if row["payload"] in (b"0", b"3")]
    assert [(row["scope"], row["mapping"], row["suffix"]) for row in unknown] == [
        (1, "sender", "/a"),
        (1, "sender", "/d"),
    ]
    assert not found.report.unread


@pytest.mark.parametrize("form", [PLAIN, Form(compression=True)], ids=["plain", "compressed"])
def test_fragments_give_their_message_too(tmp_path: Path, form: Form) -> None:
    message = push(0, "big/one", bytes(range(256)) * 40)
    pieces = [form.stream(batch) for batch in fragments(50, message, 3000)]
    between = frame(9, push(0, "between", b"x"), form=form)
    writes = [*handshake(form), *((0, piece) for piece in pieces[:2]), (1, between)]
    writes += [(0, piece) for piece in pieces[2:]]
    found = rows_of(tmp_path, capture(writes))
    kinds = [(row["message"], row["sn"], row["first"], row["more"]) for row in found.rows[4:]]
    assert kinds == [
        ("FRAGMENT", 50, True, True),
        ("FRAGMENT", 51, False, True),
        ("PUSH", 9, None, None),
        ("FRAGMENT", 52, False, True),
        ("FRAGMENT", 53, False, False),
        ("PUSH", 50, None, None),
    ]
    joined = found.rows[-1]
    assert (joined["key"], joined["payload"]) == ("big/one", bytes(range(256)) * 40)
    assert (joined["fragments"], joined["packet"]) == (4, found.rows[-2]["packet"])
    assert joined["wire_bytes"] == len(encoded(message))


def test_a_missing_fragment_is_counted(tmp_path: Path) -> None:
    pieces = fragments(50, push(0, "big/one", bytes(9000)), 3000)
    writes = [*handshake(), *((0, plain(piece)) for piece in (pieces[0], pieces[2], pieces[3]))]
    found = rows_of(tmp_path, capture(writes))
    assert [row["message"] for row in found.rows[4:]] == ["FRAGMENT"] * 3
    assert found.report.unread[DropReason.FRAGMENT_MISSING.description] == 1


def test_the_end_of_a_broken_message_is_not_taken_for_a_message(tmp_path: Path) -> None:
    end = encoded(push(0, "never/sent", b"x"))
    start = encoded(push(0, "big", bytes(900) + end))[: -len(end)]
    pieces = [
        Fragment(50, start[:400], more=True),  # no First: as before patch 1
        Fragment(52, start[800:], more=True),
        Fragment(53, end),
        Fragment(54, encoded(push(0, "whole", b"y"))),
    ]
    writes = [*handshake(), *((0, plain(write_batch([piece]))) for piece in pieces)]
    found = rows_of(tmp_path, capture(writes))
    assert found.payloads() == [("whole", b"y")]
    assert found.report.unread[DropReason.FRAGMENT_MISSING.description] == 1


def test_everything_that_data_can_carry(tmp_path: Path) -> None:
    stamp = WireTimestamp(1_700_000_000 << 32 | 1 << 31, OPENER)
    source = WireSourceInfo(WireEntityId(ACCEPTOR, 4), 5)
    put = Put(b"{}", stamp, WireEncoding.parse("application/json;pose"), source, b"attached")
    odd = Put(b"", encoding=WireEncoding.parse("my/own;type"))
    urgent = QoS(WirePriority.REAL_TIME, express=True)
    request = Request(
        7, WireExpr(0, "ask"), WireQuery(parameters="a=1"), budget=3, timeout_ms=1500, qos=urgent
    )
    replied = Response(7, WireExpr(0, "ask/b"), WireReply(put), responder=WireEntityId(ACCEPTOR, 9))
    messages: list[NetworkMessage] = [
        Push(WireExpr(0, "a"), put, qos=urgent),
        Push(WireExpr(0, "b"), odd),
        Push(WireExpr(0, "c"), Del(stamp)),
        request,
        replied,
        Response(7, WireExpr(0, "ask/c"), WireReply(Del())),
        Response(
            7, WireExpr(0, "ask/d"), Err(payload=b"no", encoding=WireEncoding.parse("text/plain"))
        ),
        ResponseFinal(7),
    ]
    batch = write_batch(
        [Frame(3, False, WirePriority.REAL_TIME, messages), KeepAlive(), Close(2, True)]
    )
    found = rows_of(tmp_path, capture([*handshake(), (0, plain(batch))]))
    put_row, odd_row, deleted, query, reply, reply_delete, error, final, alive, close = found.rows[
        4:
    ]
    assert (put_row["lane"], put_row["reliable"], put_row["sn"]) == (1, False, 3)
    assert (put_row["encoding"], put_row["schema"]) == ("application/json", "pose")
    assert (put_row["timestamp_ntp64"], put_row["timestamp_id"]) == (stamp.time, "30201")
    assert put_row["timestamp"].timestamp() == 1_700_000_000.5
    assert (put_row["source_id"], put_row["source_entity"], put_row["source_sn"]) == ("c0b0a", 4, 5)
    assert put_row["attachment"] == b"attached"
    assert (put_row["priority"], put_row["express"]) == (1, True)
    assert (odd_row["encoding"], odd_row["schema"], odd_row["payload"]) == ("my/own", "type", b"")
    assert (deleted["body"], deleted["payload"], deleted["encoding"]) == ("delete", None, None)
    assert deleted["timestamp_ntp64"] == stamp.time
    assert (query["body"], query["parameters"], query["payload"]) == ("query", "a=1", None)
    assert (query["request_id"], query["budget"], query["timeout_ms"]) == (7, 3, 1500)
    assert (query["target"], query["consolidation"]) == ("best_matching", "auto")
    assert (reply["body"], reply["responder_id"], reply["responder_entity"]) == (
        "reply",
        "c0b0a",
        9,
    )
    assert (reply["payload"], reply["key"]) == (b"{}", "ask/b")
    assert (reply_delete["body"], reply_delete["payload"]) == ("reply_delete", None)
    assert (error["body"], error["payload"], error["encoding"]) == ("err", b"no", "text/plain")
    assert (final["message"], final["request_id"], final["key"]) == ("RESPONSE_FINAL", 7, None)
    assert (alive["message"], alive["lane"], alive["sn"]) == ("KEEP_ALIVE", None, None)
    assert (close["message"], close["detail"]) == ("CLOSE", "reason=INVALID session")
    assert not found.report.unread


def test_payloads_in_shared_memory_are_said_in_words(tmp_path: Path) -> None:
    shared = Push(WireExpr(0, "shm"), Put((Slice(1, b"where"), Slice(0, b"raw")), shm=True))
    writes = [*handshake(), (0, frame(4, push(0, "a", b"1"), shared, push(0, "b", b"2")))]
    found = rows_of(tmp_path, capture([*writes, (0, frame(5, push(0, "c", b"3")))]))
    one, words, after, other = found.rows[4:]
    assert (one["payload"], other["payload"]) == (b"1", b"3")
    assert (words["message"], words["sn"], words["payload"]) == ("PUSH", 4, None)
    assert "key=shm" in words["detail"]
    assert "key=b" in after["detail"]


def test_bad_bytes_cost_the_rest_of_their_batch(tmp_path: Path) -> None:
    good = write_batch([Frame(1, messages=[push(0, "a", b"1")])])
    bad = good + b"\x1f\xff\xff\xff"
    writes = [*handshake(), (0, plain(bad, good)), (0, plain(b"\x5e")), (0, plain(good))]
    found = rows_of(tmp_path, capture(writes))
    assert [row["payload"] for row in found.rows[4:]] == [b"1"] * 3
    assert found.report.unread == {
        "batches with bad bytes": 2,
        "bytes that could not be decoded": 5,
    }


def test_the_close_that_rust_sends_after_a_low_latency_session(tmp_path: Path) -> None:
    form = Form(low_latency=True)
    close = write_batch([Close(0, True)])
    writes = [*talk(form, 1), (0, form.stream(close)), (0, plain(close))]
    found = rows_of(tmp_path, capture(writes))
    assert [row["message"] for row in found.rows[-2:]] == ["CLOSE", "CLOSE"]
    assert not found.report.unread


def test_something_else_on_zenohs_port(tmp_path: Path) -> None:
    text = [(0, b"GET / HTTP/1.1\r\n\r\n"), (1, b"HTTP/1.1 200 OK\r\n\r\n" + b"hello " * 99)]
    found = rows_of(tmp_path, capture(text))
    assert not found.rows
    assert sum(found.report.unread.values()) == sum(len(data) for _, data in text)


# ---- datagrams


def datagrams(writes: list[Write]) -> list[Write]:
    """Without the lengths that a stream needs."""
    return [(side, data[2:]) for side, data in writes]


@pytest.mark.parametrize("form", [PLAIN, Form(compression=True)], ids=["plain", "compressed"])
@pytest.mark.parametrize("port", [7447, 9999])
def test_udp(tmp_path: Path, form: Form, port: int) -> None:
    ends = (ENDS[0], ("10.0.0.2", port))
    packets = [udp(side, data, ends) for side, data in datagrams(talk(form))]
    found = rows_of(tmp_path, pcap(packets, "ethernet with padding"))
    stream = rows_of(tmp_path, capture(talk(form)))
    assert found.payloads() == stream.payloads()
    assert {row["protocol"] for row in found.rows} == {"udp"}
    assert [row["message"] for row in found.rows] == [row["message"] for row in stream.rows]
    # A datagram that was lost takes nothing else with it.
    fewer = rows_of(tmp_path, pcap(packets[:10] + packets[11:]))
    assert len(found.rows) - len(fewer.rows) in (1, 2)


def test_udp_from_the_middle(tmp_path: Path) -> None:
    packets = [udp(side, data) for side, data in datagrams(talk(Form(compression=True)))]
    found = rows_of(tmp_path, pcap(packets[8:]))
    assert [row["message"] for row in found.rows] == ["PUSH"] * 33
    assert not found.report.unread


def test_datagrams_in_ip_fragments(tmp_path: Path) -> None:
    big = frame(20, push(0, "big", bytes(range(256)) * 20))[2:]
    whole = udp(0, big)[24:]
    packets = [udp(side, data) for side, data in datagrams(talk())]
    pieces = []
    for at in range(0, len(whole), 1480):
        more = 0x2000 if at + 1480 < len(whole) else 0
        part = whole[at : at + 1480]
        pieces.append(ip(17, part, ENDS[0][0], ENDS[1][0], flags=more | at // 8, number=99))
    found = rows_of(tmp_path, pcap([*packets, pieces[1], pieces[0], *pieces[2:]]))
    assert found.rows[-1]["payload"] == bytes(range(256)) * 20
    assert not found.report.unread
    missing = rows_of(tmp_path, pcap([*packets, *pieces[1:]]))
    assert len(missing.rows) == len(found.rows) - 1
    assert missing.report.unread == {
        "IP fragments of datagrams that are not whole": len(pieces) - 1
    }


def test_scouting(tmp_path: Path) -> None:
    scouter, answerer = ("10.0.0.1", 51_000), ("10.0.0.2", 33_333)
    scout = write_scouting(WireScout(WireWhatAmI.ROUTER | WireWhatAmI.PEER, OPENER))
    hello = write_scouting(WireHello(ACCEPTOR, WireWhatAmI.ROUTER, (Locator("tcp/10.0.0.2:7447"),)))
    packets = [
        udp(0, scout, (scouter, ("224.0.0.224", 7446))),
        udp(0, hello, (answerer, scouter)),
    ]
    asked, answered = rows_of(tmp_path, pcap(packets)).rows
    assert (asked["message"], asked["protocol"], asked["src_zid"]) == (
        "SCOUT",
        "multicast",
        "30201",
    )
    assert asked["detail"] == "what=ROUTER|PEER zid=30201"
    assert (answered["message"], answered["protocol"]) == ("HELLO", "udp")
    assert answered["src_zid"] == "c0b0a"
    assert "tcp/10.0.0.2:7447" in answered["detail"]


def test_a_multicast_group(tmp_path: Path) -> None:
    ends = (("10.0.0.1", 7777), ("224.0.0.225", 7777))
    join = write_batch([Join(OPENER, WireWhatAmI.PEER, 10_000, 1, 1)])
    batch = write_batch([Frame(1, messages=[push(0, "a", b"1")])])
    found = rows_of(tmp_path, pcap([udp(0, join, ends), udp(0, batch, ends)]))
    assert [row["message"] for row in found.rows] == ["JOIN", "PUSH"]
    assert {row["protocol"] for row in found.rows} == {"multicast"}
    assert {row["src_zid"] for row in found.rows} == {"30201"}
    assert {row["dst_zid"] for row in found.rows} == {None}
