"""What a router of ours refuses is told: in the log, in an answer, or by a CLOSE with a reason."""

from collections.abc import Iterator

import pytest

from tests.support.interop_pair import settling
from tests.support.routed_sessions import PATIENCE, Net, Wire, routed
from tests.support.waiting import until
from zenlake.wire.declare import (
    Declare,
    DeclareKeyExpr,
    DeclareQueryable,
    DeclareSubscriber,
    DeclareToken,
)
from zenlake.wire.enums import CloseReason, InterestMode, InterestOptions, Mapping
from zenlake.wire.interest import Interest
from zenlake.wire.network import NetworkMessage
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr

pytestmark = pytest.mark.slow

Log = pytest.LogCaptureFixture
UNKNOWN = WireExpr(77, "/x", Mapping.SENDER)


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    with settling(), routed() as net:
        yield net


@pytest.fixture
def wire(net: Net) -> Iterator[Wire]:
    (endpoint,) = net.router.locators
    with Wire(endpoint) as wire:
        yield wire


@pytest.mark.parametrize(
    ("message", "text"),
    [
        pytest.param(Declare(DeclareSubscriber(5, UNKNOWN)), "subscriber 5 on", id="subscriber"),
        pytest.param(Declare(DeclareQueryable(6, UNKNOWN)), "queryable 6 on", id="queryable"),
        pytest.param(Declare(DeclareToken(7, UNKNOWN)), "token 7 on", id="token"),
        pytest.param(Declare(DeclareKeyExpr(8, WireExpr(9, "/x"))), "key id 8 on", id="key id"),
        pytest.param(
            Interest(
                9, InterestMode.CURRENT_FUTURE, InterestOptions.SUBSCRIBERS, WireExpr(0, "no//key")
            ),
            "interest 9 on no//key",
            id="interest",
        ),
        pytest.param(Push(UNKNOWN, Put(b"")), "put on", id="put"),
    ],
)
def test_a_message_on_an_unknown_key_is_logged(
    wire: Wire, caplog: Log, message: NetworkMessage, text: str
) -> None:
    def logged() -> bool:
        wire.session.send(message)
        return f"refused {text}" in caplog.text

    until(logged, within=PATIENCE)
    assert str(wire.zid) in caplog.text
    assert "is not declared, or the key is not valid" in caplog.text
    assert wire.session.over is None


@pytest.mark.parametrize("kind", [DeclareSubscriber, DeclareQueryable, DeclareToken])
def test_two_keys_with_one_id_end_the_session(
    wire: Wire,
    caplog: Log,
    kind: type[DeclareSubscriber] | type[DeclareQueryable] | type[DeclareToken],
) -> None:
    for key in ("first", "second"):
        wire.session.send(Declare(kind(1, WireExpr(0, key))))
    end = until(lambda: wire.session.over, within=PATIENCE)
    assert end is not None
    assert end.reason == CloseReason.UNSUPPORTED
    assert f"closed the session with {wire.zid}" in caplog.text
    assert "1 on second, which it has on first; undeclare it first" in caplog.text
    until(lambda: "the peer closed with reason 1 (UNSUPPORTED)" in caplog.text)
