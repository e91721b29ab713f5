"""A router of eclipse-zenoh in a process of its own, which publishes, asks and answers when told.

Run as a script it is that node; imported, `ReferenceRouter` starts it and talks to it by lines of
JSON.
"""

# mypy: allow-untyped-calls
# zenoh's stubs leave close() and put() without a return type.

import json
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

import zenoh

from tests.support.reference_child import ReferenceChild


class ReferenceRouter(ReferenceChild):
    """A router of eclipse-zenoh listening on `endpoint`. `ask` calls the methods of `_Node`."""

    module = "tests.support.reference_router"

    def stop(self) -> None:
        """Stop its process by SIGSTOP: its links stay open and it takes nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)


class _Node:
    """Node of eclipse-zenoh with one method per command."""

    def __init__(self, session: zenoh.Session) -> None:
        self._session = session
        self._samples: list[list[str]] = []
        self._held: list[zenoh.Query] = []
        self._tokens: dict[str, zenoh.LivelinessToken] = {}
        self._publishers: dict[str, zenoh.Publisher] = {}
        self._queriers: dict[str, zenoh.Querier] = {}
        self._kept: list[Any] = [
            session.declare_subscriber("sub/**", self._on_sample),
            session.declare_queryable("query/**", self._on_query),
            session.declare_queryable("held/**", self._held.append),
        ]

    def _on_sample(self, sample: zenoh.Sample) -> None:
        kind = "put" if sample.kind == zenoh.SampleKind.PUT else "delete"
        self._samples.append([kind, str(sample.key_expr), sample.payload.to_string()])

    def _on_query(self, query: zenoh.Query) -> None:
        """As many replies as the parameter n says, then an error."""
        with query:
            for number in range(int(str(query.parameters.get("n", "1")))):
                query.reply(f"query/{number}", str(number))
            query.reply_err("that was all")

    def samples(self) -> list[list[str]]:
        """Take kind, key and payload of the samples on sub/**."""
        taken, self._samples[:] = self._samples[:], []
        return taken

    def count(self) -> int:
        return len(self._samples)

    def put(self, key: str, count: int, size: int = 0) -> None:
        """The numbers from 0 on, none of which may be dropped, each filled up to `size`.

        Returns before all are sent, if their receiver is slow.
        """

        def run() -> None:
            with suppress(zenoh.ZError):  # the session ended first
                for number in range(count):
                    self._session.put(
                        key,
                        str(number).ljust(size),
                        congestion_control=zenoh.CongestionControl.BLOCK,
                    )

        threading.Thread(target=run, daemon=True).start()

    def matching(self, key: str) -> bool:
        """Return whether `key` has a subscriber."""
        if key not in self._publishers:
            self._publishers[key] = self._session.declare_publisher(key)
        status: Any = self._publishers[key].matching_status  # the stubs take it for a bool
        return bool(status.matching)

    def answered(self, key: str) -> bool:
        """Return whether `key` has a queryable."""
        if key not in self._queriers:
            self._queriers[key] = self._session.declare_querier(key)
        status: Any = self._queriers[key].matching_status
        return bool(status.matching)

    def held(self) -> int:
        """How many queries for held/** it has and does not answer."""
        return len(self._held)

    def let_go(self) -> None:
        self._held.clear()

    def get(self, selector: str) -> list[str]:
        """The payloads of all replies, with "err " before those of errors."""
        found = []
        for reply in self._session.get(selector, timeout=20):
            ok, err = reply.ok, reply.err
            found.append(
                ok.payload.to_string() if ok else f"err {err.payload.to_string() if err else ''}"
            )
        return found

    def token(self, key: str) -> None:
        self._tokens[key] = self._session.liveliness().declare_token(key)

    def untoken(self, key: str) -> None:
        self._tokens.pop(key).undeclare()

    def alive(self, key: str) -> list[str]:
        """The tokens that it sees."""
        replies = self._session.liveliness().get(key, timeout=20)
        return sorted(str(reply.ok.key_expr) for reply in replies if reply.ok)

    def subscribe(self, key: str) -> None:
        self._kept.append(self._session.declare_subscriber(key, self._on_sample))

    def end(self) -> None:
        self._kept.clear()


def _serve(endpoint: str) -> None:
    config = zenoh.Config()
    for path, value in {
        "mode": '"router"',
        "listen/endpoints": json.dumps([endpoint]),
        "scouting/multicast/enabled": "false",
        "transport/shared_memory/enabled": "false",
    }.items():
        config.insert_json5(path, value)
    with zenoh.open(config) as session:
        node = _Node(session)
        _say("ready")
        for line in sys.stdin:
            request = json.loads(line)
            _say(getattr(node, request.pop("do"))(**request))
        node.end()


def _say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _serve(sys.argv[1])
