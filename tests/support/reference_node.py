"""An eclipse-zenoh node in a process of its own, told what to do by lines of JSON.

Run as a script it is that node; imported, `ReferenceNode` starts it and talks to it.
"""

import json
import sys
from typing import Any

import zenoh

from tests.support.reference_child import ReferenceChild


class ReferenceNode(ReferenceChild):
    """A router of eclipse-zenoh listening on 127.0.0.1:`port`."""

    module = "tests.support.reference_node"


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


def _serve(endpoint: str) -> None:
    config = zenoh.Config()
    for path, value in {
        "mode": '"router"',
        "listen/endpoints": f'["{endpoint}"]',
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
    _serve(sys.argv[1])
