"""Schema of the configuration: every key with its kind, its default, and its meaning when unset.

Knows the tree and the kinds of its values. Does not know files, syntaxes, nor what a key does.
"""

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from math import isfinite
from typing import Any, Final

from zenlake.checked import nearest, shorten
from zenlake.errors import InvalidKeyExpr, InvalidLocator
from zenlake.keyexpr import KeyExpr
from zenlake.wire.extensions import REGION_NAME_BYTES
from zenlake.wire.locator import EndPoint
from zenlake.wire.zenohid import WireZenohId

log = logging.getLogger("zenlake.config")

ROLES = ("router", "peer", "client")
U16, U32, U64 = 2**16 - 1, 2**32 - 1, 2**64 - 1
I64 = 2**63

REQUIRED: Final = object()
"Default of a field that must be given."
Kind = Callable[[Any], Any]
"Function that returns the value as stored; Misfit: the value is not of this kind."


class Misfit(Exception):
    """Value that does not fit its place. `path` leads to it from the checked value."""

    def __init__(self, problem: str, *path: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path

    def below(self, name: str) -> "Misfit":
        return Misfit(self.problem, name, *self.path)


def wrong_value(given: object, wanted: str) -> Misfit:
    text = json.dumps(given, ensure_ascii=False, default=repr)
    return Misfit(f"is {shorten(text)}, but {wanted} is wanted")


def unknown_field(name: str, known: list[str]) -> Misfit:
    near = nearest(name, known)
    hint = f"; did you mean `{near}`?" if near else ""
    expected = ", ".join(f"`{field}`" for field in known)
    return Misfit(f"unknown field `{name}`, expected one of {expected}{hint}")


# ---- kinds


def anything(value: Any) -> Any:
    return value


def plugins(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_value(value, "an object with one object for each plugin")
    return value


FREE_KINDS = (anything, plugins)


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong_value(value, "true or false")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise wrong_value(value, "a string")
    return value


def number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise wrong_value(value, "a number")
    return float(value)


def integer(least: int, most: int) -> Kind:
    def take(value: Any) -> int:
        whole = isinstance(value, int | float) and not isinstance(value, bool)
        if not whole or value != value // 1 or not least <= value <= most:
            raise wrong_value(value, f"an integer from {least} to {most}")
        return int(value)

    return take


def one_of(*names: str) -> Kind:
    def take(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise wrong_value(value, "one of " + ", ".join(f'"{name}"' for name in names))
        return value

    return take


def optional(kind: Kind) -> Kind:
    return lambda value: None if value is None else kind(value)


def list_of(kind: Kind, *, filled: bool = False) -> Kind:
    def take(value: Any) -> list[Any]:
        if not isinstance(value, list) or (filled and not value):
            raise wrong_value(value, "a list that is not empty" if filled else "a list")
        return [_take(kind, item, str(index)) for index, item in enumerate(value)]

    return take


def either(is_first: Callable[[Any], bool], first: Kind, second: Kind) -> Kind:
    return lambda value: first(value) if is_first(value) else second(value)


def named(prefix: str, kind: Kind) -> Kind:
    """Return the kind of one value, or of an object with a value per role, named by `prefix` and
    role.
    """
    names = [prefix + role for role in ROLES]

    def take(value: Any) -> Any:
        if not isinstance(value, dict):
            return kind(value)
        for name in value:
            if name not in names:
                raise unknown_field(name, names)
        return {
            name: _take(kind, value[name], name) for name in names if value.get(name) is not None
        }

    return take


def by_mode(kind: Kind) -> Kind:
    return named("", kind)


def _take(kind: Kind, value: Any, name: str) -> Any:
    try:
        return kind(value)
    except Misfit as misfit:
        raise misfit.below(name) from None


def zid(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # YAML reads an id without quotes as a number.
    try:
        return str(WireZenohId.parse(text(value)))
    except ValueError as error:
        raise Misfit(str(error)) from None


def endpoint(value: Any) -> str:
    try:
        return str(EndPoint(text(value)))
    except InvalidLocator as error:
        raise Misfit(str(error)) from None


def key_expr(value: Any) -> str:
    try:
        return str(KeyExpr(text(value)))
    except InvalidKeyExpr as error:
        raise Misfit(str(error)) from None


def namespace(value: Any) -> str:
    if "*" in key_expr(value):
        raise wrong_value(value, "a key expression without wildcards")
    return key_expr(value)


def roles(value: Any) -> list[str]:
    chosen = list_of(one_of(*ROLES))(value)
    return [role for role in ROLES if role in chosen]


def region_name(value: Any) -> str:
    if len(text(value).encode()) not in REGION_NAME_BYTES:
        raise wrong_value(value, "a name of 1 to 32 bytes")
    return text(value)


def socket_address(value: Any) -> str:
    host, _, port = text(value).rpartition(":")
    try:
        if host.startswith("["):
            IPv6Address(host.removeprefix("[").removesuffix("]"))
        else:
            IPv4Address(host)
        if not 0 <= int(port) <= U16:
            raise ValueError
    except ValueError:
        raise wrong_value(value, 'an address and a port, such as "224.0.0.224:7446"') from None
    return text(value)


def size_range(value: Any) -> str:
    bounds = text(value).split("..")
    if len(bounds) != 2 or not all(bound.isdecimal() or not bound for bound in bounds):
        raise wrong_value(value, 'a range such as "0..99" or "100.."')
    return text(value)


def resolution(value: Any) -> str:
    given: str = one_of("8bit", "16bit", "32bit", "64bit")(value)
    if given == "64bit":
        raise wrong_value(value, "at most 32bit")
    return given


@dataclass(frozen=True)
class Field:
    kind: Kind
    default: Any = None
    unset: Any = None
    "Value that null stands for; by role if it depends on the mode."
    hidden: bool = False
    "Whether printing its section leaves the field out: a secret, or without effect."


@dataclass(frozen=True)
class Struct:
    """Object with known fields. A field that is left out has its default."""

    fields: Mapping[str, Field]
    loose: bool = False
    "Whether unknown fields are ignored with a warning, as Zenoh does in these places."
    rule: Callable[[dict[str, Any]], None] = anything

    def __call__(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong_value(value, "an object")
        for name in value:
            if name not in self.fields:
                problem = unknown_field(name, list(self.fields))
                if not self.loose:
                    raise problem
                log.warning("configuration: %s", problem.problem)
        taken = {name: self._field(name, field, value) for name, field in self.fields.items()}
        self.rule(taken)
        return taken

    def _field(self, name: str, field: Field, value: dict[str, Any]) -> Any:
        if name in value:
            return _take(field.kind, value[name], name)
        if field.default is REQUIRED:
            raise Misfit(f"missing field `{name}`")
        if isinstance(field.kind, Struct) and field.default is None:
            return None
        return field.default() if callable(field.default) else _copy(field.default)


class Section(Struct):
    """Struct whose fields are keys of the configuration."""


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value)) if isinstance(value, dict | list) else value


def section(**fields: Field) -> Field:
    return _section(Section(fields))


def _section(kind: Section) -> Field:
    return Field(kind, lambda: kind({}))


def needed(kind: Kind) -> Field:
    return Field(kind, REQUIRED)


def maybe(kind: Kind, unset: Any = None, *, hidden: bool = False) -> Field:
    return Field(optional(kind), None, unset, hidden)


def listed(kind: Kind) -> Field:
    return Field(list_of(kind), [])


def switch(default: bool) -> Field:
    return Field(boolean, default)


def count(default: int, least: int = 0, most: int = U64) -> Field:
    return Field(integer(least, most), default)


def both_or_none(usrpwd: dict[str, Any]) -> None:
    if (usrpwd["user"] is None) != (usrpwd["password"] is None):
        raise Misfit("has only one of user and password: give both or none")


def default_threads() -> int:
    return 1 + (len(os.sched_getaffinity(0)) - 1) // 4


# ---- the lists' items

FLOWS = maybe(list_of(one_of("egress", "ingress"), filled=True))
NAMES = maybe(list_of(text, filled=True))
LINKS = maybe(
    list_of(
        one_of("tcp", "udp", "tls", "quic", "serial", "unixpipe", "unixsock-stream", "vsock", "ws"),
        filled=True,
    )
)
DATA_MESSAGES = list_of(one_of("put", "delete", "query", "reply"), filled=True)
KEYS = list_of(key_expr, filled=True)
ZIDS = maybe(list_of(zid, filled=True))
CONGESTION = maybe(one_of("drop", "block", "block_first"))
PRIORITY = one_of(
    "real_time",
    "interactive_high",
    "interactive_low",
    "data_high",
    "data",
    "data_low",
    "background",
)
RELIABILITY = maybe(one_of("best_effort", "reliable"))

DOWNSAMPLING = Struct(
    {
        "id": maybe(text),
        "interfaces": NAMES,
        "link_protocols": LINKS,
        "messages": needed(DATA_MESSAGES),
        "rules": needed(
            list_of(Struct({"key_expr": needed(key_expr), "freq": needed(number)}), filled=True)
        ),
        "flows": FLOWS,
    }
)
LOW_PASS = Struct(
    {
        "id": maybe(text),
        "interfaces": NAMES,
        "link_protocols": LINKS,
        "flows": FLOWS,
        "messages": needed(DATA_MESSAGES),
        "key_exprs": needed(KEYS),
        "size_limit": needed(integer(0, U64)),
    }
)
ACL_MESSAGES = list_of(
    one_of(
        "put",
        "delete",
        "declare_subscriber",
        "query",
        "declare_queryable",
        "reply",
        "liveliness_token",
        "declare_liveliness_subscriber",
        "liveliness_query",
    ),
    filled=True,
)
PERMISSION = one_of("allow", "deny")
ACL_RULE = Struct(
    {
        "id": needed(text),
        "key_exprs": needed(KEYS),
        "messages": needed(ACL_MESSAGES),
        "flows": FLOWS,
        "permission": needed(PERMISSION),
    }
)
ACL_SUBJECT = Struct(
    {
        "id": needed(text),
        "interfaces": NAMES,
        "cert_common_names": NAMES,
        "usernames": NAMES,
        "link_protocols": LINKS,
        "zids": ZIDS,
    }
)
ACL_POLICY = Struct(
    {"id": maybe(text), "rules": needed(list_of(text)), "subjects": needed(list_of(text))}
)
QOS_FILTER = Struct(
    {
        "congestion_control": CONGESTION,
        "priority": maybe(PRIORITY),
        "express": maybe(boolean),
        "reliability": RELIABILITY,
    },
    loose=True,
)
QOS_OVERWRITE = Struct(
    {
        "congestion_control": CONGESTION,
        "priority": maybe(either(lambda v: isinstance(v, str), PRIORITY, integer(-7, 7))),
        "express": maybe(boolean),
    },
    loose=True,
)
QOS_NETWORK = Struct(
    {
        "id": maybe(text),
        "zids": ZIDS,
        "interfaces": NAMES,
        "link_protocols": LINKS,
        "messages": needed(list_of(one_of("put", "delete", "query"), filled=True)),
        "key_exprs": maybe(KEYS),
        "overwrite": needed(QOS_OVERWRITE),
        "flows": FLOWS,
        "qos": maybe(QOS_FILTER),
        "payload_size": maybe(size_range),
    }
)
QOS_PUBLICATION = Struct(
    {
        "key_exprs": needed(list_of(key_expr)),
        "config": needed(
            Struct(
                {
                    "congestion_control": CONGESTION,
                    "priority": maybe(PRIORITY),
                    "express": maybe(boolean),
                    "reliability": RELIABILITY,
                    "allowed_destination": maybe(one_of("session_local", "remote", "any")),
                },
                loose=True,
            )
        ),
    },
    loose=True,
)
GATEWAY_FILTER = Struct(
    {
        "modes": maybe(roles),
        "interfaces": NAMES,
        "zids": ZIDS,
        "region_names": maybe(list_of(region_name, filled=True)),
        "negated": switch(False),
    }
)
GATEWAY = Struct(
    {
        "south": maybe(
            either(
                lambda v: isinstance(v, str),
                one_of("auto"),
                list_of(Struct({"filters": maybe(list_of(GATEWAY_FILTER))})),
            )
        )
    }
)
RETRY = Struct(
    {
        "period_init_ms": maybe(by_mode(integer(-I64, I64 - 1))),
        "period_max_ms": maybe(by_mode(integer(-I64, I64 - 1))),
        "period_increase_factor": maybe(by_mode(number)),
    },
    loose=True,
)
LOCATORS = Struct(
    {"strategy": needed(one_of("allOf", "oneOf")), "locators": needed(list_of(endpoint))}
)
SEARCH_DIRECTORY = either(
    lambda v: isinstance(v, str),
    text,
    Struct(
        {"kind": needed(one_of("path", "current_exe_parent")), "value": maybe(text)}, loose=True
    ),
)
SEARCH_DIRECTORIES = [
    {"kind": "current_exe_parent", "value": None},
    ".",
    "~/.zenoh/lib",
    "/opt/homebrew/lib",
    "/usr/local/lib",
    "/usr/lib",
]
WEIGHT = Struct({"dst_zid": needed(zid), "weight": needed(integer(1, U16))}, loose=True)

USER_PASSWORD = Section(
    {"user": maybe(text), "password": maybe(text), "dictionary_file": maybe(text)},
    rule=both_or_none,
)

MILLISECONDS = integer(0, U64)
SIGNED = integer(-I64, I64 - 1)
STRATEGY = named("to_", one_of("always", "greater-zid"))
ALL_ROLES = [*ROLES]
ROUTERS_AND_PEERS = ["router", "peer"]


def _strategies(value: Any) -> Any:
    """Check strategies by mode, by target, or by both."""
    targets = isinstance(value, dict) and any(name.startswith("to_") for name in value)
    return STRATEGY(value) if targets else by_mode(STRATEGY)(value)


def _reaching(timeout_ms: Any, exit_on_failure: Any, endpoints: Field) -> dict[str, Field]:
    return {
        "timeout_ms": maybe(by_mode(SIGNED), timeout_ms),
        "endpoints": endpoints,
        "exit_on_failure": maybe(by_mode(boolean), exit_on_failure),
        "retry": maybe(RETRY),
    }


TREE = Section(
    {
        "id": maybe(zid),
        "metadata": Field(anything),
        "mode": maybe(one_of(*ROLES), "peer"),
        "region_name": maybe(region_name),
        "gateway": Field(GATEWAY, lambda: GATEWAY({})),
        "connect": section(
            **_reaching(
                {"router": -1, "peer": -1, "client": 0},
                {"router": False, "peer": False, "client": True},
                Field(
                    by_mode(list_of(either(lambda v: isinstance(v, str), endpoint, LOCATORS))),
                    [],
                    [],
                ),
            )
        ),
        "listen": section(
            **_reaching(
                0,
                True,
                Field(
                    by_mode(list_of(endpoint)),
                    {"router": ["tcp/[::]:7447"], "peer": ["tcp/[::]:0"]},
                    [],
                ),
            )
        ),
        "open": section(
            return_conditions=section(
                connect_scouted=maybe(boolean, True), declares=maybe(boolean, True)
            )
        ),
        "scouting": section(
            timeout=maybe(MILLISECONDS, 3000),
            delay=maybe(MILLISECONDS, 500),
            multicast=section(
                enabled=maybe(boolean, True),
                address=maybe(socket_address, "224.0.0.224:7446"),
                interface=maybe(text, "auto"),
                ttl=maybe(integer(0, U32), 1),
                autoconnect=maybe(
                    by_mode(roles), {"router": [], "peer": ALL_ROLES, "client": ALL_ROLES}
                ),
                autoconnect_strategy=maybe(_strategies, "always"),
                listen=maybe(by_mode(boolean), True),
            ),
            gossip=section(
                enabled=maybe(boolean, True),
                multihop=maybe(boolean, False),
                target=maybe(
                    by_mode(roles),
                    {"router": ROUTERS_AND_PEERS, "peer": ROUTERS_AND_PEERS, "client": []},
                ),
                autoconnect=maybe(
                    by_mode(roles), {"router": [], "peer": ALL_ROLES, "client": ALL_ROLES}
                ),
                autoconnect_strategy=maybe(_strategies, "always"),
            ),
        ),
        "timestamping": section(
            enabled=maybe(by_mode(boolean), {"router": True, "peer": False, "client": False}),
            drop_future_timestamp=maybe(boolean, False),
        ),
        "queries_default_timeout": maybe(MILLISECONDS, 10_000),
        "routing": section(
            router=section(
                peers_failover_brokering=maybe(boolean, hidden=True),
                linkstate=section(transport_weights=listed(WEIGHT)),
            ),
            peer=maybe(anything, hidden=True),
            interests=section(timeout=maybe(MILLISECONDS, 10_000)),
        ),
        "aggregation": section(subscribers=listed(key_expr), publishers=listed(key_expr)),
        "qos": section(publication=listed(QOS_PUBLICATION), network=listed(QOS_NETWORK)),
        "transport": section(
            unicast=section(
                open_timeout=count(10_000),
                accept_timeout=count(10_000),
                accept_pending=count(100),
                max_sessions=count(1000),
                max_links=count(1),
                lowlatency=switch(False),
                qos=section(enabled=switch(True)),
                compression=section(enabled=switch(False)),
            ),
            multicast=section(
                join_interval=Field(optional(MILLISECONDS), 2500),
                max_sessions=Field(optional(integer(0, U64)), 1000),
                qos=section(enabled=switch(False)),
                compression=section(enabled=switch(False)),
            ),
            link=section(
                protocols=maybe(list_of(text)),
                tx=section(
                    sequence_number_resolution=Field(resolution, "32bit"),
                    lease=count(10_000),
                    keep_alive=count(4),
                    batch_size=count(U16, most=U16),
                    queue=section(
                        size=section(
                            control=count(2, 1, 16),
                            real_time=count(2, 1, 16),
                            interactive_high=count(2, 1, 16),
                            interactive_low=count(2, 1, 16),
                            data_high=count(2, 1, 16),
                            data=count(2, 1, 16),
                            data_low=count(2, 1, 16),
                            background=count(2, 1, 16),
                        ),
                        congestion_control=section(
                            drop=section(
                                wait_before_drop=Field(SIGNED, 1000),
                                max_wait_before_drop_fragments=Field(SIGNED, 50_000),
                            ),
                            block=section(wait_before_close=Field(SIGNED, 5_000_000)),
                        ),
                        batching=section(enabled=switch(True), time_limit=count(1)),
                        allocation=section(mode=Field(one_of("init", "lazy"), "lazy")),
                    ),
                    threads=count(default_threads()),
                ),
                rx=section(buffer_size=count(U16), max_message_size=count(2**30)),
                tls=section(
                    root_ca_certificate=maybe(text),
                    listen_private_key=maybe(text),
                    listen_certificate=maybe(text),
                    enable_mtls=maybe(boolean, False),
                    connect_private_key=maybe(text),
                    connect_certificate=maybe(text),
                    verify_name_on_connect=maybe(boolean, True),
                    close_link_on_expiration=maybe(boolean, False),
                    so_sndbuf=maybe(integer(0, U32)),
                    so_rcvbuf=maybe(integer(0, U32)),
                    root_ca_certificate_base64=maybe(text, hidden=True),
                    listen_private_key_base64=maybe(text, hidden=True),
                    listen_certificate_base64=maybe(text, hidden=True),
                    connect_private_key_base64=maybe(text, hidden=True),
                    connect_certificate_base64=maybe(text, hidden=True),
                ),
                tcp=section(so_sndbuf=maybe(integer(0, U32)), so_rcvbuf=maybe(integer(0, U32))),
                unixpipe=section(file_access_mask=maybe(integer(0, U32))),
            ),
            shared_memory=section(
                enabled=switch(True),
                mode=Field(one_of("init", "lazy"), "lazy"),
                transport_optimization=section(
                    enabled=switch(True),
                    pool_size=count(16 << 20, 1),
                    message_size_threshold=count(3072),
                    messages=Field(
                        list_of(one_of("put", "delete", "query", "reply")),
                        ["put", "query", "reply"],
                    ),
                ),
            ),
            auth=section(
                usrpwd=_section(USER_PASSWORD),
                pubkey=section(
                    public_key_pem=maybe(text),
                    private_key_pem=maybe(text),
                    public_key_file=maybe(text),
                    private_key_file=maybe(text),
                    key_size=maybe(integer(0, U64)),
                    known_keys_file=maybe(text),
                ),
            ),
        ),
        "adminspace": section(
            enabled=switch(False),
            permissions=section(read=switch(True), write=switch(False)),
        ),
        "namespace": maybe(namespace),
        "downsampling": listed(DOWNSAMPLING),
        "access_control": section(
            enabled=switch(False),
            default_permission=Field(PERMISSION, "deny"),
            rules=maybe(list_of(ACL_RULE)),
            subjects=maybe(list_of(ACL_SUBJECT)),
            policies=maybe(list_of(ACL_POLICY)),
        ),
        "low_pass_filter": listed(LOW_PASS),
        "stats": section(filters=listed(Struct({"key": needed(key_expr)}, loose=True))),
        "plugins_loading": section(
            enabled=switch(False),
            search_dirs=Field(list_of(SEARCH_DIRECTORY), SEARCH_DIRECTORIES),
        ),
        "plugins": Field(plugins, {}),
    }
)
