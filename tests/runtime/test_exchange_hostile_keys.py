"""A peer with very long keys, and very many: what is kept for it has a limit in bytes, too."""

import sys
from typing import Any

import pytest

from tests.runtime.test_exchange_paths import World, encoded
from zenlake.errors import NeighbourLimit
from zenlake.keyexpr import MAX_KEY_BYTES
from zenlake.routing import declarations
from zenlake.wire.declare import (
    Declare,
    DeclareKeyExpr,
    DeclareToken,
    UndeclareKeyExpr,
    UndeclareToken,
)
from zenlake.wire.enums import InterestMode, InterestOptions, Mapping, WireWhatAmI
from zenlake.wire.interest import Interest
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr

pytestmark = pytest.mark.slow

KEYS = 600
LIMIT = 36 << 20  # Bytes per peer; 600 keys of 64 KB would be 39 MB, and many times that.


def held(*roots: Any) -> int:
    """Bytes of all texts and byte strings that can be reached through containers."""
    seen: set[int] = set()
    waiting: list[Any] = list(roots)
    total = 0
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, str | bytes):
            total += sys.getsizeof(thing)
        elif isinstance(thing, dict):
            waiting += [*thing, *thing.values()]
        elif isinstance(thing, list | tuple | set | frozenset):
            waiting += thing
        elif hasattr(type(thing), "__slots__"):
            names = [n for kind in type(thing).__mro__ for n in getattr(kind, "__slots__", ())]
            waiting += [getattr(thing, name) for name in names if name not in ("face", "session")]
    return total


def long_key(number: int) -> str:
    return f"a/{number:06}/" + "k" * (MAX_KEY_BYTES - 20)


def test_puts_on_long_keys_are_delivered_and_not_remembered() -> None:
    world = World(WireWhatAmI.ROUTER, stamps=False)
    for number in range(KEYS):
        world.feed(world.sender, encoded(Push(WireExpr(0, long_key(number)), Put(b"x"))))
    assert len(world.here.got["a/**"]) == KEYS
    port = world.sender.face
    assert held(port.routes, port.face._texts) < LIMIT


def test_a_session_with_ids_for_too_many_long_keys_ends() -> None:
    world = World(WireWhatAmI.ROUTER, stamps=False)

    def declare_all() -> None:
        for number in range(1, KEYS):
            key = WireExpr(0, long_key(number))
            world.feed(world.sender, encoded(Declare(DeclareKeyExpr(number, key))))

    with pytest.raises(NeighbourLimit, match="33,554,432 bytes of keys with an id"):
        declare_all()
    assert held(world.sender.face.face.keys._prefixes) < LIMIT
    assert world.counted()["key_id_refused"] == 1


def test_all_ids_may_stand_for_one_key() -> None:
    world = World(WireWhatAmI.ROUTER, stamps=False)
    face = world.sender.face.face
    for number in range(1, 40_000):
        world.feed(world.sender, encoded(Declare(DeclareKeyExpr(number, WireExpr(0, "a/b")))))
    assert len(face.keys._prefixes) > 39_999
    for number in range(1, 40_000):
        world.feed(world.sender, encoded(Declare(UndeclareKeyExpr(number))))
    world.feed(world.sender, encoded(Declare(DeclareKeyExpr(7, WireExpr(0, "a/b")))))
    world.feed(world.sender, encoded(Declare(DeclareKeyExpr(7, WireExpr(0, "a/b")))))
    world.feed(world.sender, encoded(Push(WireExpr(7, "", Mapping.SENDER), Put(b"x"))))
    assert len(world.here.got["a/b"]) == 1


def test_keys_of_many_chunks_are_declared_to_a_limit_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of one letter takes two bytes on the wire, and hundreds in a tree of keys."""
    monkeypatch.setattr(declarations, "MAX_WEIGHT", 256 << 20)
    world = World(WireWhatAmI.ROUTER, stamps=False)
    face = world.sender.face.face
    deep = "/".join("x" * 30_000)

    def declare_all() -> None:
        for number in range(1, 60):
            key = WireExpr(0, f"n{number}/{deep}")
            world.feed(world.sender, encoded(Declare(DeclareToken(number, key))))
            world.feed(
                world.sender,
                encoded(Interest(number, InterestMode.FUTURE, InterestOptions.TOKENS, key)),
            )

    with pytest.raises(NeighbourLimit, match="bytes of declarations and interests"):
        declare_all()
    assert 0 < len(face.declared) + len(face.interests) < 60
    assert sum(world.counted().get(f"{kind}_limit", 0) for kind in ("declaration", "interest")) == 1
    face.exceeded = None
    for number in range(1, 60):
        world.feed(world.sender, encoded(Declare(UndeclareToken(number))))
        world.feed(world.sender, encoded(Interest(number, InterestMode.FINAL)))
    assert face.weight == 0
