"""A router of eclipse-zenoh in a process of its own, which notes what is put and answers queries.

Run as a script it is that process: a line of JSON in, one out. Imported, `SparkPeer` starts it.
It answers on in/many (1000 replies), in/one, in/err (an error) and in/never (nothing, ever).
"""

# mypy: allow-untyped-calls
# zenoh's stubs leave close() and put() without a return type.

import json
import subprocess
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any

import zenoh

from tests.support.processes import module_command, python_environment

EXIT_SECONDS = 20.0
REPLIES = 1000
OPENS = 3  # Attempts: another process may take the port that was free.


class SparkPeer:
    """The process; `at` is where it listens."""

    def __init__(self, mode: str = "router") -> None:
        from tests.golden.proxy import free_port  # not where this runs as a script

        for _ in range(OPENS):
            self.at = f"tcp/127.0.0.1:{free_port()}"
            self._process = subprocess.Popen(
                module_command("tests.support.spark_peer", mode, self.at),
                env=python_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert self._process.stdout is not None
            if self._process.stdout.readline().strip() == "ready":
                return
            self.stop()
        raise AssertionError("eclipse-zenoh does not start")

    def ask(self, what: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def count(self) -> int:
        found: int = self.ask("count")
        return found

    def take(self) -> list[dict[str, Any]]:
        """Return the samples that were put since the last call."""
        found: list[dict[str, Any]] = self.ask("take")
        return found

    def stop(self) -> None:
        with suppress(subprocess.TimeoutExpired, BrokenPipeError):
            self._process.communicate(timeout=EXIT_SECONDS)
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "SparkPeer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


# ---- the process


def _told(sample: Any) -> dict[str, Any]:
    source, stamp = sample.source_info, sample.timestamp
    return {
        "key": str(sample.key_expr),
        "kind": str(sample.kind).rpartition(".")[2].lower(),
        "payload": sample.payload.to_bytes().hex(),
        "encoding": str(sample.encoding),
        "attachment": None if sample.attachment is None else sample.attachment.to_bytes().hex(),
        "priority": int(sample.priority),
        "congestion_control": str(sample.congestion_control).rpartition(".")[2].lower(),
        "express": sample.express,
        "stamped_by": None if stamp is None else str(stamp.get_id()),
        "source": None
        if source is None
        else [str(source.source_id.zid), source.source_id.eid, source.source_sn],
    }


def _answer(query: Any, held: list[Any]) -> None:
    what = str(query.key_expr)
    if what == "in/many":
        for i in range(REPLIES):
            query.reply(
                "in/many",
                b"%d" % i,
                encoding="application/json;v1",
                attachment=b"note %d" % i,
                timestamp=zenoh.Timestamp.parse_rfc3339(f"2026-01-02T03:04:05.{i:03}Z/{i + 1:x}"),
            )
    elif what == "in/one":
        query.reply("in/one", str(query.parameters).encode())
    elif what == "in/gone":
        query.reply_del("in/gone")
    elif what == "in/err":
        query.reply_err(b"the shelf is empty")
    elif what == "in/never":
        held.append(query)  # as long as it is held the query has no end


def main(mode: str, at: str) -> None:
    config = zenoh.Config()
    for key, value in {
        "mode": mode,
        "listen/endpoints": [at],
        "scouting/multicast/enabled": False,
        "transport/shared_memory/enabled": False,
        "timestamping/enabled": {"router": False, "peer": False, "client": False},
    }.items():
        config.insert_json5(key, json.dumps(value))
    samples: list[dict[str, Any]] = []
    held: list[Any] = []
    lock = threading.Lock()

    def note(sample: Any) -> None:
        with lock:
            samples.append(_told(sample))

    with zenoh.open(config) as session:
        subscriber = session.declare_subscriber("out/**", note)
        queryable = session.declare_queryable("in/**", lambda query: _answer(query, held))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        for line in sys.stdin:
            with lock:
                answer: Any = len(samples)
                if json.loads(line) == "take":
                    answer, samples = samples, []
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
        held.clear()
        queryable.undeclare()
        subscriber.undeclare()


if __name__ == "__main__":
    main(*sys.argv[1:])
