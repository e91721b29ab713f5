"""Opening: from a configuration to a running node, and the waiting that `open` does.

Knows which key becomes which setting, and which keys have no effect. Does not know API sessions:
SessionCore gives the node its handler.
"""

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import reduce
from itertools import chain
from operator import or_
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from zenlake import link as links
from zenlake.api.config.config import Config, changes, for_mode, of_mode
from zenlake.api.config.logging_env import IGNORED_KEYS
from zenlake.api.config.schema import KEYS, check_user_password
from zenlake.errors import LinkError, SessionRefused, ZError
from zenlake.link.base import Listener, TransportLink
from zenlake.link.multicast import MulticastLink
from zenlake.link.options import LinkOptions, TlsOptions
from zenlake.link.settings import without_effect
from zenlake.link.sockets import names_group
from zenlake.runtime.connector import Connector, Done
from zenlake.runtime.discovery import DiscoveryConfig
from zenlake.runtime.node import Node, NodeConfig
from zenlake.runtime.transport_session import TransportSession
from zenlake.shm.node import COPY_VARIABLE, ShmConfig
from zenlake.transport.admission import MAX_PENDING, MAX_SESSIONS, AdmissionLimits
from zenlake.transport.auth import Authenticator
from zenlake.transport.autoconnect import NO_ROLE, Autoconnect, Strategy
from zenlake.transport.fragments import MAX_MESSAGE_BYTES
from zenlake.transport.multicast import GroupOffer
from zenlake.transport.offer import Offer
from zenlake.transport.retry import Retry, RetryPolicy
from zenlake.transport.usrpwd import UserPassword, read_dictionary
from zenlake.wire.enums import CloseReason, WireWhatAmI
from zenlake.wire.init import DEFAULT_RESOLUTION
from zenlake.wire.join import DEFAULT_BATCH_SIZE
from zenlake.wire.locator import EndPoint
from zenlake.wire.zenohid import MAX_BYTES, WireZenohId

log = logging.getLogger("zenlake.config")
ignored_keys_log = logging.getLogger(IGNORED_KEYS)

LOOK_SECONDS = 0.02  # Interval between checks while `open` waits.
RESOLUTIONS = {"8bit": 0, "16bit": 1, "32bit": 2}
ROLE_OF = {"router": WireWhatAmI.ROUTER, "peer": WireWhatAmI.PEER, "client": WireWhatAmI.CLIENT}

AS_IF_UNSET = {"gateway": {"south": "auto"}}
REQUIRED_PLUGIN = "__required__"  # Field of a plugin without which Zenoh does not open.


class NotImplementedKey(ZError):
    """Refusal of a configuration whose keys would have to work, and are not implemented yet."""


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Settings of one session, derived from its configuration."""

    config: Config
    "Copy of the configuration, so that later changes of the original have no effect."
    node: NodeConfig
    network: links.LinkProvider
    "Provider of links that keep to `transport/link`."
    listen: tuple[EndPoint, ...]
    listen_retry: RetryPolicy
    "Retries of listening; timeout None: for ever, 0: one attempt."
    connect_groups: tuple[tuple[EndPoint, ...], ...]
    "Endpoints of each entry of `connect/endpoints`; a client links all of one group."

    @property
    def connect(self) -> tuple[EndPoint, ...]:
        """Endpoints to connect to, of all groups."""
        return tuple(endpoint for group in self.connect_groups for endpoint in group)

    def get(self, key: str) -> Any:
        """Return what `key` means for the role of this node."""
        return for_mode(self.config, key, self.node.offer.whatami)


# ---- from keys to settings


def read_settings(config: Config) -> SessionSettings:
    """Return the settings of `config`. ZError: it contradicts itself, or names an unusable file."""
    config = copy(config)
    role = ROLE_OF[for_mode(config, "mode", WireWhatAmI.PEER)]

    def get(key: str) -> Any:
        return for_mode(config, key, role)

    _refuse_keys_not_implemented(config)
    _warn_of_ignored_keys(config)
    own = get("id")
    zid = WireZenohId.parse(own) if own else WireZenohId(secrets.token_bytes(MAX_BYTES))
    groups = tuple(_connect_groups(get))
    listen = tuple(EndPoint(text) for text in get("listen/endpoints"))
    _warn_of_ignored_settings("listen/endpoints", listen)
    _warn_of_ignored_settings("connect/endpoints", chain.from_iterable(groups))
    return SessionSettings(
        config=config,
        node=_node_config(get, role, zid, has_endpoints=bool(groups)),
        network=_network(get),
        listen=listen,
        listen_retry=_retry(get, "listen", role),
        connect_groups=groups,
    )


Get = Callable[[str], Any]


def _connect_groups(get: Get) -> Iterator[tuple[EndPoint, ...]]:
    """Yield the endpoints of each entry of `connect/endpoints`: one, or those of a group."""
    for entry in get("connect/endpoints"):
        if isinstance(entry, str):
            yield (EndPoint(entry),)
            continue
        if entry["strategy"] == "oneOf":
            ignored_keys_log.warning(
                "configuration: connect/endpoints: strategy oneOf is taken as allOf"
            )
        yield tuple(EndPoint(text) for text in entry["locators"])


def _refuse_keys_not_implemented(config: Config) -> None:
    """Raise one error about all keys that would change what the session does, and have no effect
    here."""
    harms = {
        key: KEYS[key].refused
        for key, value in changes(config)
        if KEYS[key].refused and value != AS_IF_UNSET.get(key)
    }
    for name, plugin in for_mode(config, "plugins", WireWhatAmI.PEER).items():
        if isinstance(plugin, dict) and plugin.get(REQUIRED_PLUGIN):
            harms[f"plugins/{name}/{REQUIRED_PLUGIN}"] = "the plugin would be missing"
    if harms:
        told = "; ".join(f"{key} is not implemented yet: {harm}" for key, harm in harms.items())
        raise NotImplementedKey(f"{told}. Remove {' and '.join(harms)} to open without")


def _warn_of_ignored_keys(config: Config) -> None:
    for key, value in changes(config):
        if KEYS[key].ignored and value != KEYS[key].unset:
            ignored_keys_log.warning("configuration: %s has no effect here", key)


def _warn_of_ignored_settings(key: str, endpoints: Iterable[EndPoint]) -> None:
    for endpoint in endpoints:
        for name in without_effect(endpoint):
            ignored_keys_log.warning(
                "configuration: %s: %s of %s has no effect here", key, name, endpoint.locator
            )


def _retry(get: Get, section: str, role: WireWhatAmI) -> RetryPolicy:
    periods = {
        f"retry_{name}": str(value)
        for name, values in (get(f"{section}/retry") or {}).items()
        if (value := of_mode(values, role)) is not None
    }
    timeout_ms = get(f"{section}/timeout_ms")
    base = RetryPolicy(timeout=None if timeout_ms < 0 else timeout_ms / 1000)
    try:
        return RetryPolicy.from_config(periods, base)
    except ZError as error:
        raise ZError(f"{section}/retry: {error}") from None


def _node_config(
    get: Get, role: WireWhatAmI, zid: WireZenohId, *, has_endpoints: bool
) -> NodeConfig:

    def or_own(key: str, own: int) -> int:
        """Return the value at `key`, or `own` where it is the reference's default."""
        value: int = get(key)
        return own if value == KEYS[key].default else value

    offer = _offer(get, role, zid)
    return NodeConfig(
        offer=offer,
        authenticators=tuple(_authenticators(get)),
        options=LinkOptions(tls=_tls(get)),
        limits=AdmissionLimits(
            pending=or_own("transport/unicast/accept_pending", MAX_PENDING),
            seconds=get("transport/unicast/accept_timeout") / 1000,
            sessions=or_own("transport/unicast/max_sessions", MAX_SESSIONS),
        ),
        open_seconds=get("transport/unicast/open_timeout") / 1000,
        retry=_retry(get, "connect", role),
        max_message=or_own("transport/link/rx/max_message_size", MAX_MESSAGE_BYTES),
        discovery=_discovery(get, role, has_endpoints=has_endpoints),
        max_links=get("transport/unicast/max_links"),
        shm=_shm(get),
        group=_group(get, offer),
    )


def _group(get: Get, offer: Offer) -> GroupOffer | None:
    """Return the parameters of multicast groups; None: a client joins none."""
    if offer.whatami is WireWhatAmI.CLIENT:
        return None
    try:
        return GroupOffer(
            zid=offer.zid,
            whatami=offer.whatami,
            resolution=offer.resolution,
            batch_size=min(offer.batch_size, DEFAULT_BATCH_SIZE),
            lease_ms=offer.lease_ms,
            qos=get("transport/multicast/qos/enabled"),
            compression=get("transport/multicast/compression/enabled"),
            join_seconds=get("transport/multicast/join_interval") / 1000,
            max_members=get("transport/multicast/max_sessions"),
        )
    except ValueError as error:
        raise ZError(f"transport/multicast: {error}") from None


def _shm(get: Get) -> ShmConfig | None:
    section = "transport/shared_memory"
    if not get(f"{section}/enabled"):
        return None
    pool = f"{section}/transport_optimization"
    return ShmConfig(
        pool_bytes=get(f"{pool}/pool_size") if get(f"{pool}/enabled") else 0,
        threshold=max(1, get(f"{pool}/message_size_threshold")),
        kinds=frozenset(get(f"{pool}/messages")),
        eager=get(f"{section}/mode") == "init",
        zero_copy=os.environ.get(COPY_VARIABLE, "0") == "0",
    )


def _offer(get: Get, role: WireWhatAmI, zid: WireZenohId) -> Offer:
    qos, low_latency = get("transport/unicast/qos/enabled"), get("transport/unicast/lowlatency")
    if qos and low_latency:
        raise ZError(
            "'qos' and 'lowlatency' options are incompatible: with transport/unicast/lowlatency "
            "set transport/unicast/qos/enabled to false"
        )
    numbers = RESOLUTIONS[get("transport/link/tx/sequence_number_resolution")]
    try:
        return Offer(
            zid=zid,
            whatami=role,
            resolution=DEFAULT_RESOLUTION & ~0x03 | numbers,
            batch_size=get("transport/link/tx/batch_size"),
            lease_ms=get("transport/link/tx/lease"),
            qos=qos,
            low_latency=low_latency,
            compression=get("transport/unicast/compression/enabled"),
            region_name=get("region_name"),
        )
    except ValueError as error:
        raise ZError(f"transport/link/tx: {error}") from None


def _authenticators(get: Get) -> Iterator[Authenticator]:
    user, password = get("transport/auth/usrpwd/user"), get("transport/auth/usrpwd/password")
    file = get("transport/auth/usrpwd/dictionary_file")
    check_user_password(user, password)
    if user is not None or file is not None:
        dictionary = None if file is None else read_dictionary(Path(file))
        yield UserPassword(user, password, dictionary)
    private, public = (_key_source(get, kind) for kind in ("private_key", "public_key"))
    known = get("transport/auth/pubkey/known_keys_file")
    if private is not None:
        # Imported late: cryptography takes long to load.
        from zenlake.transport.pubkey import PublicKey

        key = PublicKey(private, [] if known is None else [Path(known)])
        if public is not None:
            key.check_public(public)
        yield key
    elif public is not None or known is not None:
        raise ZError(
            "transport/auth/pubkey: a public key or known keys alone prove nothing: give a "
            "private_key_pem or private_key_file too"
        )


def _key_source(get: Get, kind: str) -> str | Path | None:
    """Return the PEM text of a key, or the file that holds it; None: neither is configured."""
    text: str | None = get(f"transport/auth/pubkey/{kind}_pem")
    file = get(f"transport/auth/pubkey/{kind}_file")
    return Path(file) if text is None and file is not None else text


def _tls(get: Get) -> TlsOptions:
    return TlsOptions(
        **{field.name: get(f"transport/link/tls/{field.name}") for field in fields(TlsOptions)}
    )


def _discovery(get: Get, role: WireWhatAmI, *, has_endpoints: bool) -> DiscoveryConfig | None:
    """Return the discovery settings; a client with endpoints does not scout, one without takes the
    first answer.
    """
    is_client = role is WireWhatAmI.CLIENT
    answer = get("scouting/multicast/listen")
    scouted = _autoconnect(get, "multicast", role)
    if is_client and has_endpoints:
        scouted = Autoconnect({})
    looks = bool(scouted.roles.get(role, NO_ROLE))
    group = None
    if get("scouting/multicast/enabled") and (answer or looks):
        group = scouting_group(get)
        if looks and get("scouting/multicast/address") in _listen_addresses(get):
            log.warning(
                "configuration: listen/endpoints has the group of scouting/multicast/address: "
                "members of Rust leave it when they hear scouting; turn scouting/multicast/enabled "
                "off, or scout at another address"
            )
    gossip = get("scouting/gossip/enabled") and not is_client
    if group is None and not gossip:
        return None
    return DiscoveryConfig(
        group=group,
        must=False,  # Opening must succeed on machines without multicast.
        answer=answer,
        gossip=gossip,
        multihop=get("scouting/gossip/multihop"),
        target=_roles(get("scouting/gossip/target")),
        scouted=scouted,
        told=_autoconnect(get, "gossip", role),
    )


def _listen_addresses(get: Get) -> set[str]:
    return {EndPoint(text).address for text in get("listen/endpoints")}


def scouting_group(get: Get) -> str:
    """Return the endpoint of the multicast group to scout in."""
    options = {"ttl": str(get("scouting/multicast/ttl"))}
    names = [name.strip() for name in get("scouting/multicast/interface").split(",")]
    if names != ["auto"]:
        options["iface"] = names[0]
    if len(names) > 1:
        ignored_keys_log.warning(
            "configuration: scouting/multicast/interface: only %s of %s is used", names[0], names
        )
    joined = ";".join(f"{name}={value}" for name, value in options.items())
    return f"udp/{get('scouting/multicast/address')}#{joined}"


def _autoconnect(get: Get, found_by: str, role: WireWhatAmI) -> Autoconnect:
    strategy = get(f"scouting/{found_by}/autoconnect_strategy")
    if isinstance(strategy, str):
        strategy = {f"to_{name}": strategy for name in ROLE_OF}
    return Autoconnect(
        {role: _roles(get(f"scouting/{found_by}/autoconnect"))},
        {ROLE_OF[name.removeprefix("to_")]: Strategy(chosen) for name, chosen in strategy.items()},
    )


def _roles(names: Iterable[str]) -> WireWhatAmI:
    return reduce(or_, (ROLE_OF[name] for name in names), NO_ROLE)


# ---- links that keep to the configuration

BUFFERS = {"so_sndbuf": "so_sndbuf", "so_rcvbuf": "so_rcvbuf"}
LINK_SETTINGS = {"tcp": BUFFERS, "tls": BUFFERS, "unixpipe": {"file_mask": "file_access_mask"}}
"Settings of endpoints that keys below `transport/link` give: by protocol, with the key's name."


@dataclass(frozen=True)
class ConfiguredLinks:
    """Provider of links for the allowed protocols, with the configured settings of endpoints."""

    protocols: Sequence[str] | None
    settings: dict[str, dict[str, str]]
    below: links.LinkProvider

    def resolve(self, endpoint: EndPoint) -> list[Any]:
        return self.below.resolve(self._configured(endpoint))

    def connect(self, endpoint: EndPoint, address: Any, options: LinkOptions) -> TransportLink:
        return self.below.connect(self._configured(endpoint), address, options)

    def listen(self, endpoint: EndPoint, options: LinkOptions) -> Listener | MulticastLink:
        return self.below.listen(self._configured(endpoint), options)

    def _configured(self, endpoint: EndPoint) -> EndPoint:
        if self.protocols is not None and endpoint.protocol not in self.protocols:
            allowed = ", ".join(self.protocols)
            raise LinkError(
                f"Unsupported protocol: {endpoint.protocol}. Supported protocols are: [{allowed}] "
                f"(transport/link/protocols), so not {endpoint.locator}"
            )
        said = {**self.settings.get(endpoint.protocol, {}), **endpoint.config}
        joined = ";".join(f"{name}={value}" if value else name for name, value in said.items())
        return EndPoint(f"{endpoint.locator}#{joined}") if said else endpoint


def _network(get: Get) -> links.LinkProvider:
    protocols = get("transport/link/protocols")
    settings = {
        protocol: {
            setting: str(value)
            for setting, name in names.items()
            if (value := get(f"transport/link/{protocol}/{name}")) is not None
        }
        for protocol, names in LINK_SETTINGS.items()
    }
    if protocols is None and not any(settings.values()):
        return links
    return ConfiguredLinks(protocols, settings, links)


# ---- opening


class StartConditions:
    """Conditions that `open` waits for: configured endpoints, and initial declarations.

    The owner of the node calls `declared(zid)`, from any thread, when the initial declarations of
    `zid` are complete, or when none will follow. Without `wait_declares` an open transport is
    enough.
    """

    def __init__(self, wait_declares: bool = False) -> None:
        self._wait_declares = wait_declares
        self._changed = threading.Condition()
        self._declared: set[WireZenohId] = set()
        self._unreached: set[EndPoint] = set()

    def declared(self, zid: WireZenohId) -> None:
        with self._changed:
            self._declared.add(zid)
            self._changed.notify_all()

    def expect(self, endpoint: EndPoint) -> Callable[[TransportSession | ZError], None]:
        """Wait for a session at `endpoint`; return the function to call with the session or the
        error.
        """
        self._unreached.add(endpoint)

        def done(found: TransportSession | ZError) -> None:
            with self._changed:
                self._unreached.discard(endpoint)
                self._changed.notify_all()

        return done

    def wait(self, node: Node, seconds: float) -> bool:
        """Wait up to `seconds`; return whether all known conditions were met."""
        end = time.monotonic() + seconds
        with self._changed:
            while not self._met(node):
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, LOOK_SECONDS))
        return True

    def _met(self, node: Node) -> bool:
        sessions = node.sessions
        if not sessions or self._unreached or node.found:
            return False
        return not self._wait_declares or self._declared.issuperset(sessions)


def open_node(
    node: Node, settings: SessionSettings, conditions: StartConditions | None = None
) -> None:
    """Start `node`, which was made of `settings`: listen, connect, and wait as configured.

    ZError: it cannot be opened; the node is then closed. `conditions` is for an owner that knows
    when the declarations of a peer are complete.
    """
    try:
        _listen(node, settings)
        node.start()
        if settings.node.offer.whatami is WireWhatAmI.CLIENT:
            _open_client(node, settings)
        else:
            _open_others(node, settings, conditions or StartConditions())
    except BaseException:
        node.close()
        raise


def _open_client(node: Node, settings: SessionSettings) -> None:
    if settings.connect_groups:
        policy = settings.node.retry
        timeout = policy.timeout
        found: TransportSession | ZError | None = LinkError("the groups name no locator")
        if settings.connect:
            found = _first_outcome(
                lambda done: node.keep_linked(settings.connect_groups, policy, done),
                timeout or None,
            )
        if not isinstance(found, TransportSession):
            raise _connect_error(settings, found, late=bool(timeout)) from found
    elif not settings.get("scouting/multicast/enabled"):
        raise ZError(
            "No peer specified and multicast scouting deactivated! "
            "Give connect/endpoints, or set scouting/multicast/enabled"
        )
    else:
        timeout = settings.get("scouting/timeout") / 1000
        end = time.monotonic() + timeout
        while not node.sessions:
            if time.monotonic() >= end:
                raise ZError(
                    f"timeout: scouting led to no session within {timeout:g} s "
                    "(scouting/timeout); give connect/endpoints"
                )
            time.sleep(LOOK_SECONDS)


def _open_others(node: Node, settings: SessionSettings, conditions: StartConditions) -> None:
    began = time.monotonic()
    for endpoint in settings.connect:
        _connect(node, settings, endpoint, began, conditions)
    waits = settings.connect or settings.get("scouting/multicast/enabled")
    if waits and settings.get("open/return_conditions/connect_scouted"):
        delay = settings.get("scouting/delay") / 1000
        if not conditions.wait(node, delay) and settings.connect:
            log.warning("opened after %g s (scouting/delay) without all that is configured", delay)


def _connect(
    node: Node,
    settings: SessionSettings,
    endpoint: EndPoint,
    began: float,
    conditions: StartConditions,
) -> None:
    """Connect to `endpoint`: once, until the timeout, or in the background, as configured."""
    check_unicast(endpoint)
    _check_no_group(endpoint)
    policy = settings.node.retry
    must = must_succeed(endpoint, settings.get("connect/exit_on_failure"))

    def connect(policy: RetryPolicy) -> Callable[[Done], Connector]:
        return lambda done: node.keep_connected(endpoint, policy=policy, done=done)

    if policy.timeout == 0 or policy.first == 0:
        found = _first_outcome(connect(replace(policy, timeout=0)), None)
        if isinstance(found, ZError) and must:
            raise found
    elif must:
        left = None if policy.timeout is None else began + policy.timeout - time.monotonic()
        found = _first_outcome(connect(replace(policy, timeout=None)), left)
        if not isinstance(found, TransportSession):
            error = found or ZError(f"{endpoint.locator}: no answer in time")
            raise _connect_error(settings, error, late=True) from error
    else:
        done = conditions.expect(endpoint)
        node.keep_connected(endpoint, policy=replace(policy, timeout=None), done=done)


def _first_outcome(
    connect: Callable[[Done], Connector], seconds: float | None
) -> TransportSession | ZError | None:
    """Connect and wait; return the session or the last error, None: nothing in time."""
    outcome: SimpleQueue[TransportSession | ZError] = SimpleQueue()
    connector = connect(outcome.put)
    try:
        return outcome.get(timeout=None if seconds is None else max(0.0, seconds))
    except Empty:
        connector.stop()
        return connector.last_error


def _listen(node: Node, settings: SessionSettings) -> None:
    policy = settings.listen_retry
    began = time.monotonic()
    for endpoint in settings.listen:
        must = must_succeed(endpoint, settings.get("listen/exit_on_failure"))
        check_unicast(endpoint)
        if policy.timeout == 0 or policy.first == 0:
            error = _try_to_listen(node, endpoint)
            if error is not None and must:
                raise error
            if error is not None:
                log.warning("%s", error)
        elif must:
            _listen_in_time(node, endpoint, policy, began)
        else:
            node.keep_listening(endpoint, policy)


def _try_to_listen(node: Node, endpoint: EndPoint) -> ZError | None:
    try:
        node.listen(endpoint)
    except ZError as error:
        name, at = endpoint.protocol.upper(), endpoint.locator
        return LinkError(f"Can not create a new {name} listener bound to {at}: {error}")
    return None


def _listen_in_time(node: Node, endpoint: EndPoint, policy: RetryPolicy, began: float) -> None:
    retry = Retry(RetryPolicy.from_config(endpoint.config, policy), began)
    while (error := _try_to_listen(node, endpoint)) is not None:
        again = retry.failed(time.monotonic())
        if again is None:
            raise error
        log.warning("%s", error)
        time.sleep(max(0.0, again - time.monotonic()))


def check_unicast(endpoint: EndPoint) -> None:
    if endpoint.protocol not in links.PROTOCOLS:
        known = ", ".join(links.PROTOCOLS)
        raise LinkError(
            f"Unicast not supported for {endpoint.protocol} protocol: {endpoint.locator} "
            f"can be one of {known}"
        )


def _check_no_group(endpoint: EndPoint) -> None:
    """Refuse a group to connect to, as Rust does (orchestrator.rs). A name is resolved later."""
    if endpoint.protocol == "udp" and names_group(endpoint.address):
        raise LinkError(
            f"Forbidden multicast endpoint in connect list! {endpoint.locator}: "
            "put it in listen/endpoints to join the group"
        )


def must_succeed(endpoint: EndPoint, default: bool) -> bool:
    """Return the endpoint's own `exit_on_failure`, or `default`."""
    said = endpoint.config.get("exit_on_failure")
    return default if said not in ("true", "false") else said == "true"


def _entry_text(entry: Any) -> str:
    """Return an entry of `connect/endpoints` as a configuration has it."""
    if isinstance(entry, str):
        return entry
    quoted = ", ".join(f'"{endpoint}"' for endpoint in entry["locators"])
    return f'{{strategy: "{entry["strategy"]}", locators: [{quoted}]}}'


def _connect_error(settings: SessionSettings, last: ZError | None, *, late: bool) -> ZError:
    """Return the error of a node that reached no configured endpoint; `last` is the last cause."""
    entries = ", ".join(map(_entry_text, settings.get("connect/endpoints")))
    text = f"Unable to connect to any of [{entries}]{'. Timeout!' if late else '!'}"
    if last is not None:
        text += f" The last one: {last}."
    if isinstance(last, SessionRefused) and _says_no_more(last):
        text += " The node refused: it may want user and password (transport/auth)."
    return ZError(text)


def _says_no_more(end: SessionRefused) -> bool:
    """Return whether the peer ended the handshake with a CLOSE that has no special reason.

    The end of a link below it, such as that of a TLS handshake, has its own cause.
    """
    broken = isinstance(end.__cause__, LinkError)
    return end.by_peer and end.reason == CloseReason.GENERIC and not broken
