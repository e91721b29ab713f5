"""Sessions of eclipse-zenoh in a process of their own, told what to do by lines of JSON.

Run as a script it is that process; imported, `ReferenceProcess` starts it and `ReferencePeer` is
one session in it, of any mode and configuration. Every wait has a deadline. For networks of
several namespaces the sessions may be those of zenlake: the name of the module is an argument.
"""

# mypy: allow-untyped-calls
# zenoh's stubs leave close() and put() without a return type.

import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import Any

import zenoh

from tests.support.processes import module_command, python_environment

ANSWER_SECONDS = 30.0  # Deadline per command: a busy machine is slow, not wrong.
EXIT_SECONDS = 10.0
READ_BYTES = 1 << 16

Settings = dict[str, Any]
"Keys of eclipse-zenoh's configuration and their values."

ALONE: Settings = {
    "listen/endpoints": [],
    "connect/timeout_ms": 10_000,
    "connect/exit_on_failure": True,
    "scouting/multicast/enabled": False,
    "transport/shared_memory/enabled": False,
    "timestamping/enabled": {"router": False, "peer": False, "client": False},
}


def payload(index: int, size: int, noise: bool = False) -> bytes:
    """The bytes of message `index`, the same on both sides; `noise` does not compress."""
    if noise:
        return hashlib.shake_128(index.to_bytes(8, "little")).digest(size)
    word = b"message %d; " % index
    return (word * (size // len(word) + 1))[:size]


def fingerprint(data: bytes) -> list[Any]:
    """Return size and hash of a payload, which are sent instead of it."""
    return [len(data), hashlib.sha256(data).hexdigest()]


class ReferenceFailed(Exception):
    """A command that eclipse-zenoh could not carry out, with its error text."""


class ReferencePeer:
    """One session of eclipse-zenoh."""

    def __init__(self, process: "ReferenceProcess", name: str, zid: str) -> None:
        self.zid = zid
        self._process = process
        self._name = name

    def _ask(self, what: str, **arguments: Any) -> Any:
        return self._process.ask(what, name=self._name, **arguments)

    def subscribe(self, key: str) -> None:
        self._ask("subscribe", key=key)

    def count(self) -> int:
        """How many samples its subscribers hold."""
        found: int = self._ask("count")
        return found

    def samples(self) -> list[dict[str, Any]]:
        """Take the samples of its subscribers, in order: key, fingerprint, priority, express."""
        found: list[dict[str, Any]] = self._ask("samples")
        return found

    def matching(self, key: str, **qos: Any) -> bool:
        """Whether it knows a subscriber for its publisher of `key`, which it has from now on."""
        found: bool = self._ask("matching", key=key, **qos)
        return found

    def put(
        self, key: str, sizes: list[int], *, first: int = 0, noise: bool = False, **qos: Any
    ) -> None:
        """Put payload(first, sizes[0]), payload(first + 1, sizes[1]) and so on.

        `qos` is as of declare_publisher: priority, congestion_control, reliability by name, and
        express.
        """
        self._ask("put", key=key, sizes=sizes, first=first, noise=noise, **qos)

    def transports(self) -> dict[str, dict[str, Any]]:
        """By the other side's id: whatami and qos. Never ask when low latency was agreed."""
        found: dict[str, dict[str, Any]] = self._ask("transports")
        return found

    def links(self) -> list[dict[str, Any]]:
        """zid, src, dst, mtu, auth of each link."""
        found: list[dict[str, Any]] = self._ask("links")
        return found

    def events(self) -> list[list[str]]:
        """["opened" or "closed", zid] of every transport since open() gave this session."""
        found: list[list[str]] = self._ask("events")
        return found

    def closed(self, zid: str) -> int:
        """How often a transport with `zid` has ended."""
        return self.events().count(["closed", zid])

    def close(self) -> None:
        self._ask("close")


class ReferenceProcess:
    """Where the sessions live. Closed by leaving `with`; kill() and stop() at any time before."""

    def __init__(self, api: str = "zenoh", enter: tuple[str, ...] = ()) -> None:
        """Start it with the sessions of the module `api`, by a command that ends with `enter`."""
        self._process = subprocess.Popen(
            [*enter, *module_command("tests.support.reference_peer", api)],
            env=python_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._unread = b""
        self._names = 0
        assert self._answer() == {"done": "ready"}

    def __enter__(self) -> "ReferenceProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(subprocess.TimeoutExpired, BrokenPipeError):
            if self._process.poll() is None:
                self.resume()
                self._process.communicate(timeout=EXIT_SECONDS)  # closing its input ends it
        self.kill()

    def open(self, mode: str, settings: Settings | None = None) -> ReferencePeer:
        """Open a session that neither listens nor connects unless `settings` say so."""
        self._names += 1
        name = str(self._names)
        zid = self.ask("open", name=name, settings={**ALONE, "mode": mode, **(settings or {})})
        return ReferencePeer(self, name, zid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL: not a word more is said to anybody."""
        self._process.kill()
        self._process.wait(EXIT_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def stop(self) -> None:
        """SIGSTOP: its links stay open and it falls silent."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def ask(self, what: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **arguments}).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "failed" in answer:
            raise ReferenceFailed(answer["failed"])
        return answer["done"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        end = time.monotonic() + ANSWER_SECONDS
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._process.stdout], [], [], end - time.monotonic())
            assert ready, f"the reference process did not answer within {ANSWER_SECONDS:g} s"
            data = os.read(self._process.stdout.fileno(), READ_BYTES)
            assert data, "the reference process ended"
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


# ---- in the process itself


class _Hosted:
    """One session and what it has seen."""

    def __init__(self, api: Any, settings: Settings) -> None:
        config = api.Config()
        for key, value in settings.items():
            config.insert_json5(key, json.dumps(value))
        self._words = words_of(api)
        self._session = api.open(config)
        self._samples: list[dict[str, Any]] = []
        self._events: list[list[str]] = []
        self._publishers: dict[str, zenoh.Publisher] = {}
        # Not with history=True: asking after open transports of low latency panics in 1.10.2.
        self._kept: list[Any] = [
            self._session.info.declare_transport_events_listener(self._on_event)
        ]

    def _on_event(self, event: zenoh.TransportEvent) -> None:
        kind = "opened" if _name(event.kind) == "PUT" else "closed"
        self._events.append([kind, str(event.transport.zid)])

    def _on_sample(self, sample: zenoh.Sample) -> None:
        self._samples.append(
            {
                "key": str(sample.key_expr),
                "payload": fingerprint(sample.payload.to_bytes()),
                "priority": _name(sample.priority),
                "express": sample.express,
            }
        )

    def zid(self) -> str:
        return str(self._session.info.zid())

    def subscribe(self, key: str) -> None:
        self._kept.append(self._session.declare_subscriber(key, self._on_sample))

    def count(self) -> int:
        return len(self._samples)

    def samples(self) -> list[dict[str, Any]]:
        taken, self._samples[:] = self._samples[:], []
        return taken

    def _publisher(self, key: str, qos: dict[str, Any]) -> zenoh.Publisher:
        which = json.dumps([key, qos], sort_keys=True)
        if which not in self._publishers:
            given = {name: self._words.get(value, value) for name, value in qos.items()}
            self._publishers[which] = self._session.declare_publisher(key, **given)
        return self._publishers[which]

    def matching(self, key: str, **qos: Any) -> bool:
        status: Any = self._publisher(key, qos).matching_status  # the stubs take it for a bool
        return bool(status.matching)

    def put(self, key: str, sizes: list[int], first: int, noise: bool, **qos: Any) -> None:
        publisher = self._publisher(key, qos)
        for index, size in enumerate(sizes, first):
            publisher.put(payload(index, size, noise))

    def transports(self) -> dict[str, dict[str, Any]]:
        return {
            str(found.zid): {"whatami": _name(found.whatami), "qos": found.is_qos}
            for found in self._session.info.transports()
        }

    def links(self) -> list[dict[str, Any]]:
        return [
            {
                "zid": str(found.zid),
                "src": str(found.src),
                "dst": str(found.dst),
                "mtu": found.mtu,
                "auth": found.auth_identifier,
            }
            for found in self._session.info.links()
        ]

    def events(self) -> list[list[str]]:
        return self._events

    def close(self) -> None:
        self._session.close()  # may be repeated


# Names of priorities, congestion controls and reliabilities: no two of them share one.
def words_of(api: Any) -> dict[Any, Any]:
    return {
        name: getattr(kind, name)
        for kind in (api.Priority, api.CongestionControl, api.Reliability)
        for name in dir(kind)
        if name.isupper() and name != "DEFAULT"
    }


def _name(value: object) -> str:
    return str(value).rpartition(".")[2].upper()


def _serve(api: Any) -> None:
    hosted: dict[str, _Hosted] = {}
    _say({"done": "ready"})
    for line in sys.stdin:
        request = json.loads(line)
        what, name = request.pop("do"), request.pop("name")
        try:
            if what == "open":
                hosted[name] = _Hosted(api, request["settings"])
                _say({"done": hosted[name].zid()})
            else:
                command: Callable[..., Any] = getattr(hosted[name], what)
                _say({"done": command(**request)})
        except api.ZError as error:
            _say({"failed": str(error)})
    for left in hosted.values():
        left.close()


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _serve(import_module(sys.argv[1]))
