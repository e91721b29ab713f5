"""Numbers that commands show, with their nouns."""

import pytest

from zenlake.cli.commands.router import _print_line
from zenlake.cli.commands.serve import format_stats
from zenlake.cli.render.rows import describe_loss
from zenlake.lake.serve.server import ServeStats
from zenlake.quantities import counted


@pytest.mark.parametrize(
    ("noun", "singular", "plural"),
    [
        ("message", "1 message", "1,200 messages"),
        ("query", "1 query", "1,200 queries"),
        ("reply", "1 reply", "1,200 replies"),
        ("batch", "1 batch", "1,200 batches"),
        ("loss", "1 loss", "1,200 losses"),
        ("key", "1 key", "1,200 keys"),
    ],
)
def test_a_noun_is_in_the_plural_where_that_is_right(noun: str, singular: str, plural: str) -> None:
    assert (counted(1, noun), counted(1200, noun)) == (singular, plural)


def test_the_line_of_serve() -> None:
    none = dict.fromkeys(ServeStats._fields, 0)
    stats = ServeStats(**none | {"queries": 1, "answered": 1, "replies": 1, "left": 2})
    assert format_stats(stats) == "1 query, 1 answered, 1 reply, 0 errors, 0 refused, 2 gave up"


def test_loss_in_words() -> None:
    loss = {"kind": "dropped", "id": "a", "priority": 5, "reliable": True, "entity": 0}
    loss |= {"first": 4, "last": 4, "count": 1}
    assert describe_loss(loss).endswith("1 sample was dropped by the recorder")
    assert describe_loss(loss | {"count": 2}).endswith("2 samples were dropped by the recorder")
    assert "some samples of a/0" in describe_loss(loss | {"kind": "source", "count": None})


@pytest.mark.parametrize(
    ("reason", "by_peer", "line"),
    [
        ("GENERIC", True, "left    client a1 from tcp/x:1"),
        ("GENERIC", False, "closed  client a1 from tcp/x:1: this node closed it"),
        ("EXPIRED", True, "closed  client a1 from tcp/x:1: EXPIRED, this node closed it"),
    ],
)
def test_the_line_of_a_session_that_ends(
    capsys: pytest.CaptureFixture[str], reason: str, by_peer: bool, line: str
) -> None:
    fields = {"zid": "a1", "whatami": "client", "remote": "tcp/x:1", "why": "this node closed it"}
    _print_line("closed", {"reason": reason, "by_peer": by_peer} | fields)
    assert capsys.readouterr().out.split(maxsplit=1)[1] == line + "\n"


def test_the_last_line_of_a_router(capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"sent_messages": 1, "sent_bytes": 1, "dropped": {}}
    _print_line("stopped", counts)
    said = capsys.readouterr().out.split(maxsplit=1)[1]
    assert said == "stopped; passed on 1 message (1 byte), dropped: none\n"
