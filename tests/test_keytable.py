"""Declared ids: what they stand for, and what a peer may not do to them."""

from zenlake.keytable import KeyTable
from zenlake.wire.enums import Mapping
from zenlake.wire.wireexpr import WireExpr


def test_the_two_directions_are_apart() -> None:
    table = KeyTable()
    table.declare(Mapping.SENDER, 1, "theirs")
    table.declare(Mapping.RECEIVER, 1, "ours")
    assert table.text(WireExpr(1, "/x", Mapping.SENDER)) == "theirs/x"
    assert table.text(WireExpr(1, "/x", Mapping.RECEIVER)) == "ours/x"
    assert table.text(WireExpr(2, "/x", Mapping.SENDER)) is None
    assert table.text(WireExpr(0, "full/key", Mapping.SENDER)) == "full/key"


def test_scope_zero_always_means_no_prefix() -> None:
    table = KeyTable()
    assert not table.declare(Mapping.SENDER, 0, "evil")
    table.undeclare(Mapping.SENDER, 0)
    assert table.text(WireExpr(0, "a", Mapping.SENDER)) == "a"


def test_an_id_keeps_its_key_until_it_is_undeclared() -> None:
    table = KeyTable()
    assert table.declare(Mapping.SENDER, 1, "a")
    assert table.declare(Mapping.SENDER, 1, "a")
    assert not table.declare(Mapping.SENDER, 1, "b")
    assert table.text(WireExpr(1, "", Mapping.SENDER)) == "a"
    table.undeclare(Mapping.SENDER, 1)
    assert table.declare(Mapping.SENDER, 1, "b")
    assert table.text(WireExpr(1, "", Mapping.SENDER)) == "b"


def test_the_version_tells_every_change_and_table_apart() -> None:
    one, other = KeyTable(), KeyTable()
    versions = [one.version, other.version]
    one.declare(Mapping.SENDER, 1, "a")
    versions.append(one.version)
    one.undeclare(Mapping.SENDER, 1)
    versions.append(one.version)
    assert len(set(versions)) == 4
