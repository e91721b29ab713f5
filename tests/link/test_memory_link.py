"""Links in memory: every fault does what it says, when it says, and the same again."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest

from zenlake.errors import LinkError
from zenlake.link.base import Progress, TransportLink
from zenlake.sim import memory_link
from zenlake.sim.memory_link import BACKLOG, NONE, Faults, MemoryLink, MemoryListener, Network

MANY = 2000


class Clock:
    """A link and its other end, on a network that is advanced event by event."""

    def __init__(self, faults: Faults = NONE, *, seed: int = 1, datagram: bool = False) -> None:
        self.network = Network(seed, faults)
        self.listener = self.network.listen("b")
        self.a = self.network.connect("b", source="a", datagram=datagram)
        self.run()
        accepted = self.listener.accept()
        assert isinstance(accepted, MemoryLink)
        self.b = accepted
        assert self.a.handshake() is Progress.DONE

    def run(self) -> float:
        """Until nothing is left to happen: what time it is then."""
        while (event := self.network.next_event()) is not None:
            self.network.advance(event)
        return self.network.now


def read_all(link: TransportLink) -> list[bytes]:
    got = []
    while data := link.receive():
        got.append(data)
    return got


def send_many(link: TransportLink, count: int = MANY) -> list[bytes]:
    sent = [b"%05d" % number for number in range(count)]
    for data in sent:
        assert link.send(data) == len(data)
    return sent


# --- time


def test_nothing_happens_but_in_advance() -> None:
    network = Network(1, Faults(delay=(1.0, 1.0)))
    listener = network.listen("b")
    link = network.connect("b")
    assert network.next_event() == 1.0
    assert network.advance(0.999) == 0
    assert listener.accept() is None
    assert network.advance(1.0) == 1
    assert listener.accept() is not None
    assert link.handshake() is Progress.WANT_WRITE
    assert link.send(b"too early") == 0
    assert network.next_event() == 2.0
    network.advance(2.5)
    assert network.now == 2.5
    assert link.handshake() is Progress.DONE
    assert network.next_event() is None


def test_time_does_not_go_back() -> None:
    network = Network()
    network.advance(5.0)
    with pytest.raises(ValueError, match="cannot go back"):
        network.advance(4.9)


def test_an_endless_moment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_link, "EVENTS_AT_ONE_TIME", 1000)
    clock = Clock()

    def answer(link: MemoryLink) -> None:
        while data := link.receive():
            link.send(data)

    for link in (clock.a, clock.b):
        link.on_ready = partial(answer, link)
    clock.a.send(b"for ever")
    with pytest.raises(RuntimeError, match="give the links a delay"):
        clock.network.advance(0.0)


def test_events_see_the_time_at_which_they_happen() -> None:
    clock = Clock(Faults(delay=(0.25, 0.25)))
    times: list[float] = []
    clock.b.on_ready = lambda: times.append(clock.network.now)
    start = clock.network.now
    clock.a.send(b"x")
    clock.network.advance(start + 100)
    assert times == [start + 0.25]


def events_of(seed: int) -> list[tuple[float, str, bytes]]:
    """Everything that happens between some ends with all faults."""
    faults = Faults(
        delay=(0.01, 0.05), loss=0.1, duplication=0.1, reordering=0.1, chunk=7, bandwidth=10_000
    )
    network = Network(seed, faults)
    listener = network.listen("hub")
    events: list[tuple[float, str, bytes]] = []

    def heard(link: MemoryLink) -> None:
        while data := link.receive():
            events.append((network.now, link.remote, data))

    def welcome() -> None:
        while (link := listener.accept()) is not None:
            assert isinstance(link, MemoryLink)
            link.on_ready = partial(heard, link)

    listener.on_ready = welcome
    links = [network.connect("hub", source=f"n{n}", datagram=n % 2 == 0) for n in range(20)]
    for moment in range(100):
        network.advance(moment / 10)
        for link in links:
            if link.handshake() is Progress.DONE:
                link.send(b"message %d" % moment)
    return events


def test_the_same_seed_is_the_same_run() -> None:
    first = events_of(7)
    assert len(first) > 1000
    assert events_of(7) == first
    assert events_of(8) != first


# --- faults


def test_delayed_bytes_keep_their_order() -> None:
    clock = Clock(Faults(delay=(0.1, 0.3)))
    times: list[float] = []
    clock.b.on_ready = lambda: times.append(clock.network.now)
    start = clock.network.now
    sent = send_many(clock.a, 100)
    clock.run()
    assert len(times) == 100
    assert start + 0.1 <= times[0]
    assert times[-1] <= start + 0.3
    assert all(earlier <= later for earlier, later in pairwise(times))
    assert b"".join(read_all(clock.b)) == b"".join(sent)


def test_loss_and_duplication() -> None:
    clock = Clock(Faults(loss=0.25, duplication=0.25), datagram=True)
    sent = send_many(clock.a)
    clock.run()
    got = read_all(clock.b)
    network = clock.network
    assert 400 < network.lost < 600
    assert 300 < network.duplicated < 450
    assert len(got) == MANY - network.lost + network.duplicated
    assert set(got) < set(sent)
    assert got == sorted(got)


def test_reordering() -> None:
    clock = Clock(Faults(delay=(0.001, 0.001), reordering=0.2), datagram=True)
    sent = send_many(clock.a)
    clock.run()
    got = read_all(clock.b)
    assert sorted(got) == sent
    assert got != sent
    assert 300 < clock.network.reordered < 500


def test_streams_lose_and_reorder_nothing() -> None:
    faults = Faults(delay=(0.0, 1.0), loss=0.5, duplication=0.5, reordering=0.5)
    clock = Clock(faults)
    sent = send_many(clock.a)
    clock.run()
    assert read_all(clock.b) == sent
    assert clock.network.lost == 0


def test_streams_come_in_pieces() -> None:
    clock = Clock(Faults(chunk=10))
    data = bytes(range(256)) * 40
    assert clock.a.send(data) == len(data)
    clock.run()
    pieces = read_all(clock.b)
    assert b"".join(pieces) == data
    assert {len(piece) for piece in pieces[:-1]} == set(range(1, 11))


def test_bandwidth() -> None:
    clock = Clock(Faults(bandwidth=1000.0))
    start = clock.network.now
    clock.a.send(bytes(500))
    clock.a.send(bytes(1500))
    clock.network.advance(start + 0.5)
    assert [len(data) for data in read_all(clock.b)] == [500]
    clock.network.advance(start + 1.999)
    assert clock.b.receive() is None
    clock.network.advance(start + 2.0)
    assert [len(data) for data in read_all(clock.b)] == [1500]


def test_a_full_buffer_pushes_back_and_calls_when_there_is_room() -> None:
    clock = Clock(Faults(delay=(0.1, 0.1), buffer=1000))
    assert clock.a.send(bytes(1500)) == 1000
    assert clock.a.send(bytes(1)) == 0
    clock.run()
    assert clock.a.send(bytes(1)) == 0
    called: list[float] = []
    clock.a.on_ready = lambda: called.append(clock.network.now)
    assert len(clock.b.receive() or b"") == 1000
    assert called == []
    now = clock.run()
    assert called == [now]
    assert clock.a.send(bytes(1500)) == 1000


def test_a_full_buffer_of_datagrams_takes_all_or_none() -> None:
    clock = Clock(Faults(buffer=1000), datagram=True)
    assert clock.a.send(bytes(600)) == 600
    assert clock.a.send(bytes(600)) == 0
    assert clock.a.send(bytes(400)) == 400
    called: list[int] = []
    clock.a.on_ready = lambda: called.append(1)
    clock.run()
    assert [len(data) for data in read_all(clock.b)] == [600, 400]
    clock.run()
    assert called == [1]
    assert clock.a.send(bytes(5000)) == 5000  # into an empty buffer any one goes


def test_faults_count_per_direction_and_may_change() -> None:
    clock = Clock(datagram=True)
    clock.network.set_faults(clock.a, Faults(loss=1.0))
    send_many(clock.a, 10)
    sent = send_many(clock.b, 10)
    clock.run()
    assert read_all(clock.b) == []
    assert read_all(clock.a) == sent
    clock.network.set_faults(clock.a, Faults())
    send_many(clock.a, 10)
    clock.run()
    assert read_all(clock.b) == sent


def test_dial_may_give_each_way_its_own() -> None:
    network = Network()
    listener = network.listen("b")
    link = network.connect("b", faults=Faults(delay=(1.0, 1.0)), back=Faults(delay=(5.0, 5.0)))
    network.advance(1.0)
    assert listener.accept() is not None
    network.advance(5.9)
    assert link.handshake() is Progress.WANT_WRITE
    network.advance(6.0)
    assert link.handshake() is Progress.DONE


# --- links that break


@pytest.mark.parametrize("reset", [True, False])
def test_a_cut_is_seen_by_both_ends(reset: bool) -> None:
    clock = Clock(Faults(delay=(1.0, 1.0)))
    clock.a.send(b"never arrives")
    called: list[str] = []
    clock.a.on_ready = lambda: called.append("a")
    clock.b.on_ready = lambda: called.append("b")
    clock.network.cut(clock.a, reset=reset)
    clock.network.advance(clock.network.now)
    assert called == ["a", "b"]
    for link in (clock.a, clock.b):
        if reset:
            with pytest.raises(LinkError, match="cut"):
                link.receive()
        else:
            assert link.receive() == b""
        with pytest.raises(LinkError):
            link.send(b"late")
    clock.run()


@pytest.mark.parametrize("after", [1, 5, 14, 15])
def test_a_cut_after_some_bytes_lets_just_these_through(after: int) -> None:
    clock = Clock()
    clock.network.cut(clock.a, after=after)
    for part in (b"01234", b"56789", b"abcde", b"fghij"):
        clock.a.send(part)
    clock.b.send(b"back")
    clock.run()
    got = b""
    while clock.b.more:
        got += clock.b.receive() or b""
    with pytest.raises(LinkError, match="cut"):
        clock.b.receive()
    assert got == b"0123456789abcde"[:after]
    with pytest.raises(LinkError):
        clock.a.send(b"more")


def test_half_open_bytes_vanish_one_way_until_the_buffer_is_full() -> None:
    clock = Clock(Faults(buffer=1000))
    clock.network.half_open(clock.a)
    assert clock.a.send(bytes(600)) == 600
    clock.b.send(b"back")
    clock.run()
    assert clock.b.receive() is None
    assert clock.a.receive() == b"back"
    assert clock.a.send(bytes(600)) == 400
    clock.run()
    assert clock.a.send(bytes(600)) == 0
    clock.a.close()
    clock.run()
    assert clock.b.receive() is None  # nor does it learn of the end


def test_a_partition_holds_streams_up_and_heal_lets_them_go() -> None:
    clock = Clock(Faults(delay=(0.1, 0.5)))
    first = send_many(clock.a, 50)
    clock.network.partition({"a"}, {"b", "c"})
    clock.a.send(b"during")
    clock.b.send(b"back")
    clock.run()
    assert clock.b.receive() is None
    assert clock.a.receive() is None
    clock.network.heal()
    clock.a.send(b"after")
    clock.run()
    assert read_all(clock.b) == [*first, b"during", b"after"]
    assert read_all(clock.a) == [b"back"]


def test_heal_while_bytes_are_on_their_way_keeps_the_order() -> None:
    clock = Clock(Faults(bandwidth=5.0, delay=(0.1, 2.0)))
    clock.network.partition({"b"}, {"a"})
    sent = send_many(clock.a, 20)
    clock.network.advance(clock.network.now + 10)
    clock.network.heal()
    clock.run()
    assert read_all(clock.b) == sent


def test_a_partition_loses_datagrams() -> None:
    clock = Clock(datagram=True)
    clock.network.partition({"a"}, {"b"})
    send_many(clock.a, 10)
    clock.run()
    clock.network.heal()
    clock.a.send(b"after")
    clock.run()
    assert read_all(clock.b) == [b"after"]
    assert clock.network.lost == 10


def test_a_partition_is_only_between_its_names() -> None:
    clock = Clock()
    clock.network.partition({"a"}, {"c"})
    clock.network.partition({"b"}, {"d"})
    clock.a.send(b"through")
    clock.run()
    assert read_all(clock.b) == [b"through"]


def test_a_connect_into_a_partition_just_waits() -> None:
    network = Network(1, Faults(delay=(0.1, 0.1)))
    listener = network.listen("b")
    network.partition({"a"}, {"b"})
    link = network.connect("b", source="a")
    nobody = network.connect("nobody", source="a")
    network.advance(100.0)
    assert link.handshake() is Progress.WANT_WRITE
    assert listener.accept() is None
    with pytest.raises(LinkError, match="memory/nobody: connect: no node listens there"):
        nobody.handshake()
    network.heal()
    network.advance(200.0)
    assert link.handshake() is Progress.WANT_WRITE
    link.close()


def test_a_refusal_comes_after_the_delay_and_calls() -> None:
    network = Network(1, Faults(delay=(1.0, 1.0)))
    link = network.connect("nobody")
    called: list[float] = []
    link.on_ready = lambda: called.append(network.now)
    network.advance(1.9)
    assert link.handshake() is Progress.WANT_WRITE
    network.advance(2.0)
    assert called == [2.0]
    with pytest.raises(LinkError, match="memory/nobody"):
        link.handshake()


def test_a_full_listener_refuses() -> None:
    network = Network()
    network.listen("b")
    links = [network.connect("b") for _ in range(BACKLOG + 1)]
    network.advance(0.0)
    assert all(link.handshake() is Progress.DONE for link in links[:-1])
    with pytest.raises(LinkError):
        links[-1].handshake()


def test_who_sends_to_a_closed_end_learns_of_it() -> None:
    clock = Clock(Faults(delay=(0.1, 0.1)))
    clock.b.close()
    clock.a.send(b"crossing")
    clock.run()
    with pytest.raises(LinkError, match="closed"):
        clock.a.send(b"again")


def test_a_closed_listener_ends_those_who_wait_and_frees_its_name() -> None:
    network = Network()
    listener = network.listen("b")
    link = network.connect("b")
    network.advance(0.0)
    listener.close()
    network.advance(0.0)
    assert link.receive() == b""
    assert isinstance(network.listen("b"), MemoryListener)


def test_links_of_one_name_differ() -> None:
    network = Network()
    listener = network.listen("b")
    links = [network.connect("b", source="a") for _ in range(3)]
    network.advance(0.0)
    accepted = [listener.accept() for _ in links]
    assert [link.local for link in links] == ["memory/a:1", "memory/a:2", "memory/a:3"]
    for link, other in zip(links, accepted, strict=True):
        assert other is not None
        assert other.remote == link.local
        assert (other.address, link.address) == ("a", "b")


# --- size


def test_thousands_of_links_and_many_events() -> None:
    network = Network(3, Faults(delay=(0.001, 0.01)))
    listener = network.listen("hub")
    links: list[MemoryLink] = []

    def echo(link: MemoryLink) -> Callable[[], None]:
        def ready() -> None:
            while data := link.receive():
                link.send(data)

        return ready

    def welcome() -> None:
        while (link := listener.accept()) is not None:
            assert isinstance(link, MemoryLink)
            link.on_ready = echo(link)
            links.append(link)

    listener.on_ready = welcome
    dialled = [network.connect("hub", source=f"n{number}") for number in range(5000)]
    network.advance(1.0)
    assert len(links) == 5000
    for link in dialled:
        link.on_ready = echo(link)
        link.send(b"ball")
    events, now = 0, 1.0
    while events < 100_000:
        now += 0.01
        events += network.advance(now)
    assert network.next_event() is not None
