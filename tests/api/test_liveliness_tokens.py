"""Tokens: declared, asked for, watched."""

from typing import Any

import pytest

from tests.support.in_memory_sessions import Side
from zenlake.api.discovery import matching
from zenlake.api.handlers import Callback
from zenlake.api.query.cancellation import CancellationToken
from zenlake.api.values.enums import CongestionControl, Priority, SampleKind
from zenlake.api.values.sample import Sample
from zenlake.errors import ZError
from zenlake.wire.declare import (
    Declaration,
    Declare,
    DeclareFinal,
    DeclareToken,
    UndeclareToken,
)
from zenlake.wire.enums import InterestMode, InterestOptions, Mapping
from zenlake.wire.interest import Interest
from zenlake.wire.wireexpr import WireExpr


def key(text: str) -> WireExpr:
    return WireExpr(0, text, Mapping.SENDER)


def tell(side: Side, *bodies: Declaration, interest: int | None = None) -> None:
    for body in bodies:
        side.interests.on_declare(Declare(body, interest_id=interest))


def last_interest(side: Side) -> Interest:
    interest: Interest = side.exchange.sent_of(Interest)[-1]
    return interest


def read(subscriber: Any) -> list[tuple[str, str]]:
    seen = []
    while (sample := subscriber.try_recv()) is not None:
        seen.append((sample.kind.name, str(sample.key_expr)))
    return seen


# ---- tokens


def test_a_token_is_declared_and_undeclared() -> None:
    side = Side()
    token = side.liveliness.declare_token("lv/a")
    token.undeclare()
    declared, undeclared = (message.body for message in side.exchange.sent_of(Declare))
    assert isinstance(declared, DeclareToken)
    assert declared.key.suffix == "lv/a"
    assert undeclared == UndeclareToken(declared.id)
    for use in (token.undeclare, token.__enter__, lambda: repr(token)):
        with pytest.raises(ZError, match="Undeclared LivelinessToken"):
            use()


def test_a_token_ends_with_its_block_or_its_last_reference() -> None:
    side = Side()
    with side.liveliness.declare_token("lv/a"):
        pass
    side.liveliness.declare_token("lv/b")
    kinds = [type(message.body).__name__ for message in side.exchange.sent_of(Declare)]
    assert kinds == ["DeclareToken", "UndeclareToken"] * 2


def test_a_token_of_a_closed_session() -> None:
    side = Side()
    token = side.liveliness.declare_token("lv/a")
    side.close()
    token.undeclare()
    for use in (
        lambda: side.liveliness.declare_token("lv/a"),
        lambda: side.liveliness.get("lv/a"),
        lambda: side.liveliness.declare_subscriber("lv/a"),
    ):
        with pytest.raises(ZError, match="session closed"):
            use()


# ---- get


def test_get_gives_each_token_once_and_ends_with_the_final() -> None:
    side = Side()
    replies = side.liveliness.get("lv/**")
    sent = last_interest(side)
    assert sent.mode is InterestMode.CURRENT
    assert sent.options == InterestOptions.KEYEXPRS | InterestOptions.TOKENS
    assert sent.key == key("lv/**")
    tell(side, *(DeclareToken(0, key(text)) for text in ("lv/a", "lv/b", "lv/a")), interest=sent.id)
    first = replies.recv()
    assert first.ok is not None
    assert first.ok.kind is SampleKind.PUT
    assert first.ok.payload == b""
    assert first.ok.encoding == "zenoh/bytes"
    assert first.replier_id is None
    assert first.ok.timestamp is None
    tell(side, DeclareFinal(), interest=sent.id)
    assert [str(reply.ok.key_expr) for reply in (first, *replies) if reply.ok] == ["lv/a", "lv/b"]
    tell(side, DeclareFinal(), interest=sent.id)
    assert not side.interests._questions


def test_get_that_is_not_answered() -> None:
    side = Side()
    replies = side.liveliness.get("lv/**", timeout=1)
    number = last_interest(side).id
    tell(side, DeclareToken(0, key("lv/a")), interest=number)
    side.exchange.advance(1)
    alive, end = replies
    assert alive.ok is not None
    assert end.err is not None
    assert (str(alive.ok.key_expr), str(end.err.payload)) == ("lv/a", "Timeout")
    assert not side.interests._questions
    assert side.exchange.forgotten == []  # routing knows of no query
    with pytest.raises(ValueError, match="negative timeout"):
        side.liveliness.get("lv/**", timeout=-1)


def test_get_that_is_cancelled() -> None:
    side = Side()
    token = CancellationToken()
    replies = side.liveliness.get("lv/**", cancellation_token=token)
    token.cancel()
    assert list(replies) == []
    assert not side.interests._questions
    with pytest.raises(ZError, match="Query was cancelled"):
        side.liveliness.get("lv/**", cancellation_token=token)


# ---- subscribers


def test_a_subscriber_hears_matching_tokens_until_it_is_undeclared() -> None:
    side = Side()
    subscriber = side.liveliness.declare_subscriber("lv/*")
    assert last_interest(side).mode is InterestMode.FUTURE
    tell(side, DeclareToken(1, key("lv/a")), DeclareToken(2, key("other")))
    sample = subscriber.recv()
    assert (sample.kind, str(sample.key_expr)) == (SampleKind.PUT, "lv/a")
    assert sample.payload == b""
    assert sample.congestion_control is CongestionControl.DROP
    assert (sample.priority, sample.express) == (Priority.DATA, False)
    tell(side, UndeclareToken(1), UndeclareToken(2))
    assert read(subscriber) == [("DELETE", "lv/a")]
    handler = subscriber.handler
    subscriber.undeclare()
    assert last_interest(side).mode is InterestMode.FINAL
    tell(side, DeclareToken(3, key("lv/c")))
    assert list(handler) == []
    with pytest.raises(ZError, match="Undeclared subscriber"):
        subscriber.recv()


def test_history_begins_with_the_tokens_that_live() -> None:
    side = Side()
    plain = side.liveliness.declare_subscriber("lv/*")
    first = side.liveliness.declare_subscriber("lv/*", history=True)
    number = last_interest(side).id
    assert last_interest(side).mode is InterestMode.CURRENT_FUTURE
    tell(side, DeclareToken(1, key("lv/a")), DeclareFinal(), interest=number)
    assert (read(plain), read(first)) == ([], [("PUT", "lv/a")])
    second = side.liveliness.declare_subscriber("lv/**", history=True)
    assert read(second) == [("PUT", "lv/a")]
    tell(side, DeclareToken(1, key("lv/a")), interest=last_interest(side).id)  # it is known
    assert read(second) == read(first) == []
    tell(side, UndeclareToken(1))
    assert read(plain) == read(first) == read(second) == [("DELETE", "lv/a")]


def test_a_key_is_alive_until_its_last_token_goes() -> None:
    side = Side()
    subscriber = side.liveliness.declare_subscriber("**")
    tell(side, DeclareToken(1, key("a")), DeclareToken(2, key("a")), UndeclareToken(1))
    assert read(subscriber) == [("PUT", "a")]
    tell(side, UndeclareToken(2))
    assert read(subscriber) == [("DELETE", "a")]


def test_the_end_of_a_token_that_was_there_before() -> None:
    side = Side()
    subscriber = side.liveliness.declare_subscriber("lv/*")
    tell(side, UndeclareToken(0, key("lv/a")), UndeclareToken(5))
    assert read(subscriber) == [("DELETE", "lv/a")]


def test_tokens_that_nobody_watches_are_forgotten() -> None:
    """No message would say when they end."""
    side = Side()
    other = side.liveliness.declare_subscriber("b/*", history=True)
    with side.liveliness.declare_subscriber("*/*", history=True):
        tell(side, DeclareToken(1, key("a/1")), DeclareToken(2, key("b/1")))
    assert read(other) == [("PUT", "b/1")]
    assert read(side.liveliness.declare_subscriber("*/*", history=True)) == [("PUT", "b/1")]


def test_who_holds_the_subscriber() -> None:
    side = Side()
    seen: list[str] = []
    side.liveliness.declare_subscriber("a")
    assert last_interest(side).mode is InterestMode.FINAL

    def on_sample(sample: Sample) -> None:
        seen.append(sample.kind.name)

    side.liveliness.declare_subscriber(
        "a", Callback(on_sample, lambda: seen.append("end"), indirect=False)
    )
    tell(side, DeclareToken(1, key("a")))
    side.close()
    assert seen == ["PUT", "end"]


def test_a_callback_may_ask_back() -> None:
    """It runs outside of all locks."""
    side = Side()
    seen: list[str] = []

    def on_sample(sample: Any) -> None:
        seen.append(str(sample.key_expr))
        if sample.key_expr == "a/1":
            tell(side, DeclareToken(2, key("a/2")))
            side.liveliness.declare_token("mine").undeclare()

    side.liveliness.declare_subscriber("a/*", Callback(on_sample, indirect=False))
    tell(side, DeclareToken(1, key("a/1")))
    assert seen == ["a/1", "a/2"]
    side.close()


def test_tokens_beyond_the_limit_are_counted_and_ignored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(matching, "MAX_DECLARED", 1)
    side = Side()
    subscriber = side.liveliness.declare_subscriber("*")
    tell(side, DeclareToken(1, key("a")), DeclareToken(2, key("b")))
    assert read(subscriber) == [("PUT", "a")]
    assert side.interests.counters["tokens"] == 1
    assert "other nodes have more than 1 tokens" in caplog.text
