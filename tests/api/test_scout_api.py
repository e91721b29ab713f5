"""scout(): who answers, how it ends, and that nothing of it stays."""

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.support.discovery import LOOPBACK, new_group, on_lo, scouting
from tests.support.reference_peer import ReferenceProcess
from tests.support.runtime_nodes import make_node
from tests.support.waiting import until
from zenlake.api.config.config import Config
from zenlake.api.discovery.scouting import Hello, Scout, scout
from zenlake.api.handlers import Callback, FifoChannel, Handler, RingChannel
from zenlake.api.values.enums import WhatAmI, WhatAmIMatcher
from zenlake.api.values.wrapped import make
from zenlake.errors import LinkError, ZError
from zenlake.runtime.discovery import DiscoveryConfig
from zenlake.runtime.node import Node
from zenlake.transport.autoconnect import Autoconnect
from zenlake.wire import enums as wire

pytestmark = pytest.mark.slow

THREAD = "zenlake scout"


def within(group: str) -> Config:
    made = Config()
    made.insert_json5("scouting/multicast/address", f"'{group}'")
    made.insert_json5("scouting/multicast/interface", "'lo'")
    return made


@contextmanager
def answering(group: str, whatami: wire.WireWhatAmI = wire.WireWhatAmI.ROUTER) -> Iterator[Node]:
    nobody = Autoconnect({})
    found = DiscoveryConfig(group=on_lo(group), scouted=nobody, told=nobody)
    with make_node(whatami=whatami, discovery=found) as node:
        node.listen(LOOPBACK)
        yield node


def scouts() -> int:
    return sum(thread.name == THREAD for thread in threading.enumerate())


def test_a_hello_names_the_node_and_its_locators() -> None:
    group = new_group()
    with answering(group) as node, scout(config=within(group)) as looking:
        hello = looking.recv()
        assert (str(hello.zid), hello.whatami) == (str(node.zid), WhatAmI.ROUTER)
        assert hello.locators == [str(node.locators[0])]
        shown = f"Hello {{ zid: {node.zid}, whatami: Router, locators: [{node.locators[0]}] }}"
        assert str(hello) == shown
        assert hello == make(
            Hello, whatami=hello.whatami, zid=hello.zid, _locators=tuple(hello.locators)
        )
        again = looking.recv()  # a node is asked again, and answers again
        assert hash(again) == hash(hello)
        assert again == hello


@pytest.mark.parametrize(
    "what",
    ["peer", "peer|client", WhatAmI.PEER, WhatAmIMatcher("peer"), WhatAmI.PEER | WhatAmI.CLIENT],
    ids=str,
)
def test_only_nodes_of_the_asked_role_answer(what: WhatAmIMatcher | WhatAmI | str) -> None:
    group = new_group()
    with (
        answering(group, wire.WireWhatAmI.PEER) as peer,
        answering(group),
        scout(what=what, config=within(group)) as looking,
    ):
        found = [looking.recv(), looking.recv()]  # the second is of the second question
    assert {str(hello.zid) for hello in found} == {str(peer.zid)}


def test_nodes_of_every_role_answer_by_default() -> None:
    group = new_group()
    roles = (wire.WireWhatAmI.ROUTER, wire.WireWhatAmI.PEER, wire.WireWhatAmI.CLIENT)
    with ExitStack() as stack:
        nodes = {str(stack.enter_context(answering(group, role)).zid) for role in roles}
        looking = stack.enter_context(scout(config=within(group)))
        assert {str(looking.recv().zid) for _ in nodes} == nodes


def test_a_stopped_scout_refuses_every_call() -> None:
    group = new_group()
    with answering(group):
        looking = scout(config=within(group))
        handler = looking.handler
        for _ in looking:
            looking.stop()
        assert scouts() == 0
        with pytest.raises(ZError, match="channel is empty and closed"):
            handler.recv()
        for call in (looking.recv, looking.try_recv, looking.stop, lambda: looking.handler):
            with pytest.raises(ZError, match=r"^Stopped scout$"):
                call()


def test_stop_wakes_who_waits() -> None:
    looking = scout(config=within(new_group()))
    handler = looking.handler
    ends: list[ZError] = []

    def wait() -> None:
        try:
            handler.recv()
        except ZError as error:
            ends.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    looking.stop()
    waiting.join()
    assert len(ends) == 1


def test_a_scout_without_answers_ends_when_it_is_stopped() -> None:
    with scout(config=within(new_group())) as looking:
        assert looking.try_recv() is None
        assert scouts() == 1
    assert scouts() == 0
    with scout(config=within(new_group())) as looking:
        looking.stop()


@pytest.mark.parametrize("background", [False, True])
def test_a_scout_that_is_dropped_ends(background: bool) -> None:
    group = new_group()
    found: list[Hello] = []
    with answering(group):
        looking: Scout[None] | Scout[Handler[Hello]] | None = scout(
            found.append if background else None, None, within(group)
        )
        if background:
            until(lambda: found)
        assert scouts() == 1
        looking = None
        gc.collect()
        until(lambda: scouts() == 0)
        assert looking is None
        until(lambda: not any("callback" in t.name for t in threading.enumerate()))


def test_callbacks_hear_hellos_and_are_dropped_at_the_end() -> None:
    group = new_group()
    found: list[Hello] = []
    dropped: list[int] = []
    with answering(group) as node:
        with scout(Callback(found.append, lambda: dropped.append(1)), config=within(group)) as one:
            assert one.handler is None
            until(lambda: found)
        assert dropped == [1]
        with scout((found.append, "mine"), config=within(group)) as other:
            assert other.handler == "mine"
        direct = Callback(found.append, indirect=False)
        with scout(direct, config=within(group)):
            before = len(found)
            until(lambda: len(found) > before)
    assert {str(hello.zid) for hello in found} == {str(node.zid)}


def test_a_callback_may_stop_its_scout() -> None:
    group = new_group()
    mine: list[Scout[None]] = []
    ready, stopped = threading.Event(), threading.Event()

    def on_hello(hello: Hello) -> None:
        ready.wait()
        if not stopped.is_set():
            mine[0].stop()
            stopped.set()

    with answering(group):
        mine.append(scout(Callback(on_hello, indirect=False), config=within(group)))
        ready.set()
        assert stopped.wait(30)
        until(lambda: scouts() == 0)


def test_a_full_channel_holds_the_scout_and_stop_frees_it() -> None:
    group = new_group()
    with answering(group), answering(group), answering(group):
        looking = scout(FifoChannel(1), config=within(group))
        looking.recv()
        until(lambda: looking.try_recv() is not None)
        time.sleep(0.05)  # more answers wait; what follows has to hold whether or not they do
        looking.stop()
        assert scouts() == 0
        with scout(RingChannel(1), config=within(group)) as ring:
            assert ring.recv().whatami is WhatAmI.ROUTER


def test_wrong_arguments_are_refused_and_leave_no_scout() -> None:
    for arguments in ({"what": 5}, {"config": 5}):
        with pytest.raises(TypeError):
            scout(**arguments)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="Invalid handler type int"):
        scout(5)  # type: ignore[call-overload]
    with pytest.raises(ZError):
        scout(what="nobody")
    bad = Config.from_json5("{scouting: {multicast: {interface: 'nowhere0'}}}")
    with pytest.raises(LinkError, match="no interface has this name"):
        scout(config=bad)
    assert scouts() == 0


@pytest.mark.process
def test_the_interpreter_ends_though_nobody_stopped_it() -> None:
    group = new_group()
    program = f"""
from zenlake.api.config.config import Config
from zenlake.api.discovery.scouting import scout
config = Config.from_json5("{{scouting: {{multicast: {{address: '{group}', interface: 'lo'}}}}}}")
kept = scout(print, config=config)
other = scout(config=config)
print("end")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("end\n", "")


@pytest.mark.process
@pytest.mark.interop
def test_the_reference_answers() -> None:
    group = new_group()
    with ReferenceProcess() as reference:
        them = reference.open("router", scouting(group))
        with scout(what="router", config=within(group)) as looking:
            hello = looking.recv()
            assert (str(hello.zid), hello.whatami) == (them.zid, WhatAmI.ROUTER)
            assert hello.locators[0].startswith("tcp/127.0.0.1:")
