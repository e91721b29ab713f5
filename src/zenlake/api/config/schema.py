"""Schema of the configuration: the keys that schema.json lists, and the kinds of their values.

Knows how a value is checked. Does not know files, syntaxes, nor what a key does.

A kind in schema.json is a name, a range such as `0 to 65535`, `one of` some words, or a kind after
one of COMBINATIONS: `null or by mode list of endpoint`. `a else b` is `a` for a text, `b` for any
other value. An object with named fields is a kind too: a field must be given unless its kind
allows null, and `*` says that unknown fields are ignored with a warning, as Zenoh does there.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import cache
from ipaddress import IPv4Address, IPv6Address
from math import isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple

from zenlake.checked import Kind, nearest, shorten, when
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr
from zenlake.wire.extensions import REGION_NAME_BYTES
from zenlake.wire.locator import EndPoint
from zenlake.wire.zenohid import WireZenohId

log = logging.getLogger("zenlake.config")

ROLES = ("router", "peer", "client")
USER_PASSWORD = "transport/auth/usrpwd"
REQUIRED: Final = object()
"Default of a field that must be given."
Check = Callable[[Any, str], Any]
"Function of a value and its place that returns the value as stored. ZError: it is of another kind."


def refusal(where: str, problem: str) -> ZError:
    return ZError(f"{where}: {problem}" if where else problem)


def wrong_value(given: object, where: str, wanted: str) -> ZError:
    text = json.dumps(given, ensure_ascii=False, default=repr)
    return refusal(where, f"is {shorten(text)}, but {wanted} is wanted")


def near_hint(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    return f"; did you mean `{near}`?" if near else ""


def unknown_field(name: str, known: Iterable[str]) -> str:
    expected = ", ".join(f"`{field}`" for field in known)
    return f"unknown field `{name}`, expected one of {expected}{near_hint(name, known)}"


def below(where: str, name: str) -> str:
    return f"{where}/{name}" if where else name


# ---- combinations of kinds


def check_by(kind: Kind) -> Check:
    """Return the check by a kind; the text of its ValueError, if any, is the cause."""

    def check(value: Any, where: str) -> Any:
        try:
            return kind.read(value)
        except ValueError as error:
            cause = str(error)
        raise refusal(where, cause) if cause else wrong_value(value, where, kind.what)

    return check


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def integer(least: int, most: int) -> Check:
    def fits(value: Any) -> bool:
        return is_number(value) and value == value // 1 and least <= value <= most

    return check_by(Kind(f"an integer from {least} to {most}", when(fits, int)))


def one_of(*words: str) -> Check:
    wanted = ", ".join(f'"{word}"' for word in words)
    return check_by(Kind(f"one of {wanted}", when(words.__contains__)))


def optional(kind: Check) -> Check:
    return lambda value, where: None if value is None else kind(value, where)


def either(of_text: Check, other: Check) -> Check:
    return lambda value, where: (of_text if isinstance(value, str) else other)(value, where)


def list_of(kind: Check, *, filled: bool = False) -> Check:
    def check(value: Any, where: str) -> list[Any]:
        if not isinstance(value, list) or (filled and not value):
            raise wrong_value(value, where, "a list that is not empty" if filled else "a list")
        return [kind(item, below(where, str(index))) for index, item in enumerate(value)]

    return check


def by_role(kind: Check, prefix: str = "") -> Check:
    """Check one value, or an object with a value per role, named by `prefix` and role."""
    names = [prefix + role for role in ROLES]

    def check(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            return kind(value, where)
        for name in value:
            if name not in names:
                raise refusal(where, unknown_field(name, names))
        return {
            name: kind(value[name], below(where, name))
            for name in names
            if value.get(name) is not None
        }

    return check


def by_mode_or_target(kind: Check) -> Check:
    """Check values by mode, by the role of the other node (`to_peer`), or by both."""
    by_target = by_role(kind, "to_")
    by_both = by_role(by_target)

    def check(value: Any, where: str) -> Any:
        targets = isinstance(value, dict) and any(name.startswith("to_") for name in value)
        return (by_target if targets else by_both)(value, where)

    return check


COMBINATIONS: dict[str, Callable[[Check], Check]] = {
    "null or ": optional,
    "by mode or target ": by_mode_or_target,
    "by mode ": by_role,
    "list of ": list_of,
    "filled list of ": lambda kind: list_of(kind, filled=True),
}


class Field(NamedTuple):
    """Key of the configuration, or field of an object in it."""

    check: Check
    kind: str
    default: Any = None
    unset: Any = None
    "Value that null stands for; by role if it depends on the mode."
    hidden: bool = False
    "Whether printing its section leaves the field out: a secret, or without effect."
    secret: bool = False
    ignored: bool = False
    "Whether the field has no effect in this implementation."
    refused: str = ""
    "Harm of opening while the field has no effect: any value but the default is refused."
    does: str = ""


class Struct:
    """Object with known fields. A field that is left out has its default."""

    def __init__(self, fields: dict[str, Field], *, loose: bool = False) -> None:
        self.fields = fields
        self._loose = loose

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong_value(value, where, "an object")
        for name in value:
            if name not in self.fields:
                problem = unknown_field(name, self.fields)
                if not self._loose:
                    raise refusal(where, problem)
                log.warning("configuration: %s", problem)
        taken = {}
        for name, field in self.fields.items():
            if name in value or isinstance(field.check, Section):
                taken[name] = field.check(value.get(name, {}), below(where, name))
            elif field.default is REQUIRED:
                raise refusal(where, f"missing field `{name}`")
            else:
                taken[name] = deepcopy(field.default)
        if where == USER_PASSWORD:
            check_user_password(taken["user"], taken["password"])
        return taken


class Section(Struct):
    """Struct whose fields are keys of the configuration."""


def check_user_password(user: str | None, password: str | None) -> None:
    if (user is None) != (password is None):
        raise refusal(USER_PASSWORD, "has only one of user and password: give both or none")


# ---- kinds with a name


def _is_socket_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    try:
        if host.startswith("["):
            IPv6Address(host.removeprefix("[").removesuffix("]"))
        else:
            IPv4Address(host)
        return 0 <= int(port) <= 65535
    except ValueError:
        return False


def text_by(kind: Kind) -> Check:
    """Return the check of a text by a kind, as what it reads is written."""
    check = check_by(kind)

    def check_text(value: Any, where: str) -> str:
        return str(check(KINDS["text"](value, where), where))

    return check_text


def zid(value: Any, where: str) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # YAML reads an id without quotes as a number.
    return text_by(Kind("a Zenoh id", WireZenohId.parse))(value, where)


def roles(value: Any, where: str) -> list[str]:
    chosen = list_of(one_of(*ROLES))(value, where)
    return [role for role in ROLES if role in chosen]


def resolution(value: Any, where: str) -> Any:
    if value == "64bit":
        raise wrong_value(value, where, "at most 32bit")
    return one_of("8bit", "16bit", "32bit", "64bit")(value, where)


VALUES = {
    "anything": Kind("anything", when(lambda value: True)),
    "boolean": Kind("true or false", when(lambda value: isinstance(value, bool))),
    "number": Kind("a number", when(lambda value: is_number(value) and isfinite(value), float)),
    "plugins": Kind(
        "an object with one object for each plugin", when(lambda value: isinstance(value, dict))
    ),
    "text": Kind("a string", when(lambda value: isinstance(value, str))),
}
TEXTS = {
    "endpoint": Kind("an endpoint", EndPoint),
    "key_expr": Kind("a key expression", KeyExpr),
    "namespace": Kind(
        "a key expression without wildcards", when(lambda text: "*" not in KeyExpr(text))
    ),
    "region_name": Kind(
        "a name of 1 to 32 bytes", when(lambda text: len(text.encode()) in REGION_NAME_BYTES)
    ),
    "size_range": Kind(
        'a range such as "0..99" or "100.."', when(re.compile(r"\d*\.\.\d*").fullmatch)
    ),
    "socket_address": Kind(
        'an address and a port, such as "224.0.0.224:7446"', when(_is_socket_address)
    ),
}
KINDS: dict[str, Check] = {name: check_by(kind) for name, kind in VALUES.items()}
KINDS |= {name: text_by(kind) for name, kind in TEXTS.items()}
KINDS |= {"roles": roles, "resolution": resolution, "zid": zid}


# ---- schema.json


@cache
def make_check(kind: str) -> Check:
    """Return the check of a kind as schema.json writes it."""
    for words, combine in COMBINATIONS.items():
        if kind.startswith(words):
            return combine(make_check(kind.removeprefix(words)))
    of_text, _, other = kind.partition(" else ")
    if other:
        return either(make_check(of_text), make_check(other))
    if kind.startswith("one of "):
        return one_of(*kind.split()[2:])
    least, _, most = kind.partition(" to ")
    return integer(int(least), int(most)) if most else KINDS[kind]


def make_field(entry: str | dict[str, Any]) -> Field:
    """Return a field of its entry, or of its kind alone."""
    told = {"kind": entry} if isinstance(entry, str) else entry
    kind = told["kind"]
    default = None if kind.startswith("null or ") else REQUIRED
    return Field(make_check(kind), **{"default": default, **told})


def make_kind(entry: str | dict[str, Any]) -> Check:
    if isinstance(entry, str):
        return make_check(entry)
    fields = {name: make_field(told) for name, told in entry.items() if name != "*"}
    return Struct(fields, loose="*" in entry)


def make_tree(keys: dict[str, Field]) -> Section:
    tree = Section({})
    for key, field in keys.items():
        *above, name = key.split("/")
        section: Any = tree
        for part in above:
            section = section.fields.setdefault(part, Field(Section({}), "section")).check
        section.fields[name] = field
    return tree


_data = json.loads(Path(__file__).with_name("schema.json").read_bytes())
_processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
_data["keys"]["transport/link/tx/threads"]["default"] = 1 + ((_processors or 1) - 1) // 4
for _name, _entry in _data["kinds"].items():
    KINDS[_name] = make_kind(_entry)
KEYS: dict[str, Field] = {key: make_field(entry) for key, entry in _data["keys"].items()}
"Every key that is not a section."
TREE = make_tree(KEYS)
