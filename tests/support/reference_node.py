"""An eclipse-zenoh node in a process of its own, told what to do by lines of JSON.

Run as a script it is that node; imported, `ReferenceNode` starts it and talks to it.
"""

import json
import socket
import subprocess
import sys
from types import TracebackType
from typing import Any

import zenoh

from tests.support.processes import module_command, python_environment

STARTS = 3


class ReferenceNode:
    """A router of eclipse-zenoh listening on 127.0.0.1:`port`."""

    def __init__(self) -> None:
        for attempt in range(STARTS):  # another process may take the port that was free just now
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port: int = probe.getsockname()[1]
            self._process = subprocess.Popen(
                module_command("tests.support.reference_node", str(self.port)),
                env=python_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                assert self.answer() == "ready"
                return
            except AssertionError:
                self.__exit__(None, None, None)
                if attempt == STARTS - 1:
                    raise

    def __enter__(self) -> "ReferenceNode":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._process.communicate(timeout=20)  # closing its input ends it
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()

    def ask(self, what: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the reference node ended"
        return json.loads(line)


def _sample(sample: zenoh.Sample) -> dict[str, Any]:
    stamp, source = sample.timestamp, sample.source_info
    return {
        "key": str(sample.key_expr),
        "kind": "put" if sample.kind == zenoh.SampleKind.PUT else "delete",
        "payload": sample.payload.to_bytes().hex(),
        "encoding": str(sample.encoding),
        "attachment": None if sample.attachment is None else sample.attachment.to_bytes().hex(),
        "timestamp": None if stamp is None else str(stamp),
        "priority": str(sample.priority).rpartition(".")[2],
        "congestion_control": str(sample.congestion_control).rpartition(".")[2],
        "express": sample.express,
        "source": None
        if source is None
        else [str(source.source_id.zid), source.source_id.eid, source.source_sn],
    }


def _serve(port: int) -> None:
    config = zenoh.Config()
    for path, value in {
        "mode": '"router"',
        "listen/endpoints": f'["tcp/127.0.0.1:{port}"]',
        "scouting/multicast/enabled": "false",
        "transport/shared_memory/enabled": "false",
        "timestamping/enabled": '{"router": false, "peer": false, "client": false}',
    }.items():
        config.insert_json5(path, value)
    with zenoh.open(config) as session:
        samples: list[dict[str, Any]] = []
        queries: list[dict[str, Any]] = []

        def on_query(query: zenoh.Query) -> None:
            with query:
                queries.append(
                    {
                        "selector": str(query.selector),
                        "payload": None
                        if query.payload is None
                        else query.payload.to_bytes().hex(),
                        "encoding": None if query.encoding is None else str(query.encoding),
                        "attachment": None
                        if query.attachment is None
                        else query.attachment.to_bytes().hex(),
                    }
                )
                query.reply(query.key_expr, b"reply", encoding="text/plain", attachment=b"att")
                query.reply_err(b"error", encoding="text/html")

        entities = [
            session.declare_subscriber("sub/**", lambda s: samples.append(_sample(s))),
            session.declare_queryable("query/**", on_query),
        ]
        _say("ready")
        for line in sys.stdin:
            request = json.loads(line)
            match request["do"]:
                case "samples":
                    taken, samples[:] = samples[:], []
                    _say(taken)
                case "count":
                    _say(len(samples))
                case "queries":
                    taken, queries[:] = queries[:], []
                    _say(taken)
                case "put":
                    session.put(
                        request["key"],
                        bytes.fromhex(request["payload"]),
                        encoding=request["encoding"],
                        attachment=b"theirs",
                    )
                    _say("done")
        entities.clear()


def _say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
