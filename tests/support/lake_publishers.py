"""Publishers with accounts of what they put, and a recorder that may die at any moment.

Voices are sessions of zenlake in this process or of eclipse-zenoh in another. What is not known to
be durable is put again, with the number and the timestamp it had: each is in the account once.
"""

# mypy: allow-untyped-calls
# zenoh's stubs leave close() and put() without a return type.

import importlib
import json
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.support.processes import call_command, python_environment

ADMIN = "@/*/*/recorder/**?durable"
WAIT_SECONDS = 60.0  # Deadline: a busy machine is slow, not wrong.
ASK_SECONDS = 5.0  # Timeout of the query for durability; without an answer samples are put again.
PIECE = 60  # Samples between two queries for durability.
OPENS = 3  # Attempts: another process may take the port that was free.
SOURCES = 2  # Numbered sources per publisher.
TICK = 64  # Ticks per second: such times are exact in NTP64 and in microseconds.
DYING_SECONDS = 0.03  # Longest time between a put and the kill of the recorder.

ENCODINGS = (
    "application/json",
    "application/json;fleet.Pose",
    "text/plain",
    "zenoh/string",
    "zenoh/bytes",
)


class ExpectedSample(NamedTuple):
    """One put, or delete for no payload; `stamp` is a time in ticks and the id of a clock."""

    key: str
    payload: bytes | None
    encoding: str
    stamp: tuple[int, str] | None = None
    source: tuple[int, int] | None = None
    "Which one of the publisher's, and the number."
    attachment: bytes | None = None

    @property
    def ntp64(self) -> int | None:
        if self.stamp is None:
            return None
        seconds, ticks = divmod(self.stamp[0], TICK)
        return seconds << 32 | (ticks << 32) // TICK

    def to_json(self) -> list[Any]:
        return [field.hex() if isinstance(field, bytes) else field for field in self]

    @classmethod
    def from_json(cls, raw: list[Any]) -> "ExpectedSample":
        key, payload, encoding, stamp, source, attachment = raw
        return cls(
            key,
            None if payload is None else bytes.fromhex(payload),
            encoding,
            None if stamp is None else (stamp[0], stamp[1]),
            None if source is None else (source[0], source[1]),
            None if attachment is None else bytes.fromhex(attachment),
        )


# ---- what is put


class SampleGenerator:
    """Samples of one publisher, made up as it goes: late, skipped, repeated and deleted."""

    def __init__(self, name: str, clock: str, skew: float, seed: int) -> None:
        self.gaps: set[tuple[int, int, int]] = set()
        "Source, first and last of the numbers that are never given."
        self._name, self._clock = name, clock
        self._chance = random.Random(seed)
        self._now = int((time.time() + skew) * TICK)
        self._next = [self._chance.randrange(1000) for _ in range(SOURCES)]
        self._past: list[ExpectedSample] = []

    def more(self, count: int) -> list[ExpectedSample]:
        return [self._one() for _ in range(count)]

    def _one(self) -> ExpectedSample:
        chance = self._chance
        if self._past and chance.random() < 0.06:
            return chance.choice(self._past)  # as routers that fail over do
        self._now += chance.randrange(3)
        late = chance.randrange(40) if chance.random() < 0.15 else 0
        shared = chance.random() < 0.5
        key = f"fleet/{'all' if shared else self._name}/{chance.randrange(30)}"
        encoding = chance.choice(ENCODINGS)
        said = ExpectedSample(
            key,
            None if chance.random() < 0.15 else self._payload(encoding),
            encoding,
            (self._now - late, self._clock),
            self._number(),
            b"note" if chance.random() < 0.2 else None,
        )
        said = said if said.payload is not None else said._replace(encoding="zenoh/bytes")
        self._past.append(said)
        return said

    def _number(self) -> tuple[int, int]:
        source = self._chance.randrange(SOURCES)
        number = self._next[source]
        self._next[source] = number + 1
        if self._chance.random() < 0.04:
            skipped = self._chance.randrange(1, 4)
            self._next[source] += skipped
            self.gaps.add((source, number + 1, number + skipped))
        return source, number

    def _payload(self, encoding: str) -> bytes:
        value = self._chance.randrange(1 << 30)
        if self._chance.random() < 0.1:
            return b'{"broken\xff'
        if encoding.startswith("application/json"):
            return json.dumps({"value": value, "name": self._name}).encode()
        return f"{self._name} ü {value}".encode()

    def known_gaps(self) -> set[tuple[int, int, int]]:
        """Without those behind which nothing was said yet."""
        return {gap for gap in self.gaps if gap[2] + 1 < self._next[gap[0]]}


# ---- who puts it


class Session:
    """A session that puts, of zenlake or of eclipse-zenoh: the same calls do."""

    def __init__(self, library: str) -> None:
        self._zenoh: Any = importlib.import_module(library)
        self._session: Any = None
        self._ids: list[Any] = []

    def open(self, at: str) -> list[tuple[str, int]]:
        """A new session, once the recorder hears it; who numbers what it puts."""
        self.close()
        config = self._zenoh.Config()
        for key, value in {
            "mode": "client",
            "connect/endpoints": [at],
            "scouting/multicast/enabled": False,
            "timestamping/enabled": {"router": False, "peer": False, "client": False},
        }.items():
            config.insert_json5(key, json.dumps(value))
        self._session = self._zenoh.open(config)
        probe = self._session.declare_publisher("fleet/probe")
        if not self._ids:
            kept = [self._session.declare_publisher(f"fleet/{n}") for n in range(SOURCES)]
            self._ids = [publisher.id for publisher in kept]
        end = time.monotonic() + WAIT_SECONDS
        while not probe.matching_status.matching:
            assert time.monotonic() < end, "the recorder does not subscribe"
            time.sleep(0.005)
        probe.undeclare()
        return [(str(entity.zid), entity.eid) for entity in self._ids]

    def put(self, some: Iterable[ExpectedSample]) -> None:
        zenoh, session = self._zenoh, self._session
        for said in some:
            more: dict[str, Any] = {"congestion_control": zenoh.CongestionControl.BLOCK}
            if said.stamp is not None:
                more["timestamp"] = self._stamp(*said.stamp)
            if said.source is not None:
                source, number = said.source
                more["source_info"] = zenoh.SourceInfo(self._ids[source], number)
            if said.attachment is not None:
                more["attachment"] = said.attachment
            if said.payload is None:
                session.delete(said.key, **more)
            else:
                session.put(said.key, said.payload, encoding=said.encoding, **more)

    def _stamp(self, ticks: int, clock: str) -> Any:
        seconds, rest = divmod(ticks, TICK)
        day = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        micro = rest * 1_000_000 // TICK
        return self._zenoh.Timestamp.parse_rfc3339(f"{day}.{micro:06}Z/{clock}")

    def durable(self) -> bool:
        """Whether the recorder says that all it was sent is."""
        with suppress(self._zenoh.ZError):
            replies = list(self._session.get(ADMIN, timeout=ASK_SECONDS))
            return any(reply.ok is not None for reply in replies)
        return False

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def serve() -> None:
    """A session of eclipse-zenoh, told what to do by lines of JSON."""
    session = Session("zenoh")
    for line in sys.stdin:
        what, given = json.loads(line)
        if what == "put":
            given = [[ExpectedSample.from_json(raw) for raw in given]]
        found = getattr(session, what)(*given)
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    session.close()


class LineProcess:
    """A process of these tests that is told lines and says lines."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            command,
            env=python_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], WAIT_SECONDS)
        assert ready, "it says nothing"
        line = self.process.stdout.readline()
        assert line, "it has ended"
        return line.decode().strip()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


class RemoteSession:
    """A Session of eclipse-zenoh, in another process."""

    def __init__(self) -> None:
        self._told = LineProcess(*call_command("tests.support.lake_publishers", "serve"))

    def _ask(self, what: str, *given: Any) -> Any:
        self._told.tell(json.dumps([what, given]))
        return json.loads(self._told.hear())

    def open(self, at: str) -> list[tuple[str, int]]:
        return [(zid, entity) for zid, entity in self._ask("open", at)]

    def put(self, some: Iterable[ExpectedSample]) -> None:
        self._ask("put", *(sample.to_json() for sample in some))

    def durable(self) -> bool:
        return bool(self._ask("durable"))

    def close(self) -> None:
        self._told.close()


class LedgerPublisher:
    """A session, what it says, and its account."""

    def __init__(
        self, name: str, clock: str, skew: float, session: Session | RemoteSession
    ) -> None:
        self.name = name
        self.session = session
        self.speech = SampleGenerator(name, clock, skew, seed=len(name) + int(skew))
        self.account: dict[Any, ExpectedSample] = {}
        "Durable samples by source and number, in order."
        self.sources: list[tuple[str, int]] = []
        self._last: dict[int, ExpectedSample] = {}
        self._fresh = False

    def open(self, at: str) -> None:
        self.sources = self.session.open(at)
        self._fresh = True

    def say(self, some: Sequence[ExpectedSample]) -> None:
        """A new recorder hears the last of each source first: only so it sees what is skipped."""
        self.session.put([*self._last.values(), *some] if self._fresh else some)

    def is_durable(self, some: Sequence[ExpectedSample]) -> bool:
        """Whether that is; then it is in the account."""
        if not self.session.durable():
            return False
        self._fresh = False
        for sample in some:
            assert sample.source is not None
            if sample.source not in self.account:
                self.account[sample.source] = sample
                self._last[sample.source[0]] = sample
        return True

    @property
    def gaps(self) -> set[tuple[str, int, int, int]]:
        return {
            (*self.sources[source], first, last) for source, first, last in self.speech.known_gaps()
        }


# ---- who records


def record(path: str) -> None:
    """Once it is told to, until it is killed; says where it listens."""
    from tests.golden.proxy import free_port
    from tests.support.session_pairs import configured
    from zenlake.errors import LinkError
    from zenlake.log.write.recorder import Recorder
    from zenlake.runtime import kernel_loader

    kernel_loader.load()
    sys.stdin.readline()
    for _ in range(OPENS):
        at = f"tcp/127.0.0.1:{free_port()}"
        with suppress(LinkError):
            config = configured(listen__endpoints=[at])
            Recorder(path, "fleet/**", config=config, rotate_bytes=1 << 16, sync_seconds=0.001)
            break
    else:
        raise AssertionError("no port is free")
    sys.stdout.write(at + "\n")
    sys.stdout.flush()
    while True:
        signal.pause()


class World:
    """Voices, and one recorder after the other, of which the next is loaded already."""

    def __init__(self, log: Path, publishers: Sequence[LedgerPublisher], seed: int = 7) -> None:
        self.publishers = publishers
        self.kills = 0
        self._log = log
        self._chance = random.Random(seed)
        self._recorder, self._next = self._loaded(), self._loaded()
        self._started = False

    def _loaded(self) -> LineProcess:
        return LineProcess(*call_command("tests.support.lake_publishers", "record", str(self._log)))

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in (
            *(publisher.session for publisher in self.publishers),
            self._recorder,
            self._next,
        ):
            child.close()

    def _start(self) -> None:
        self._recorder.tell("record")
        at = self._recorder.hear()
        for publisher in self.publishers:
            publisher.open(at)

    def _restart(self) -> None:
        self._recorder.close()
        self._recorder, self._next = self._next, self._loaded()
        self._start()

    def go_on(self, count: int, kills: int = 0) -> None:
        """Every publisher says so much more; all of it is durable then."""
        work = [
            (publisher, piece)
            for publisher in self.publishers
            for piece in pieces(publisher.speech.more(count))
        ]
        dying = set(self._chance.sample(range(len(work)), kills))
        for number, (publisher, piece) in enumerate(work):
            publisher.say(piece)
            if number in dying:
                time.sleep(self._chance.uniform(0, DYING_SECONDS))
                self._recorder.process.send_signal(signal.SIGKILL)
                self.kills += 1
            while not publisher.is_durable(piece):
                self._restart()
                publisher.say(piece)


def pieces(some: Sequence[ExpectedSample]) -> Iterator[Sequence[ExpectedSample]]:
    for at in range(0, len(some), PIECE):
        yield some[at : at + PIECE]
