"""The processes of the log's benchmark: `python -m bench.log_peer ROLE ARGUMENTS`, as JSON.

`recorder` is the measured one; `feed` only sends messages, which are encoded before.
"""

import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

import zenlake
from bench.api_peer import FLOW, Silent, client
from bench.peer import free_port, report, run_role, serve, session_config
from zenlake.log.write.recorder import Recorder
from zenlake.runtime.node import Node, NodeConfig
from zenlake.wire import qos
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.declare import Declare, DeclareKeyExpr
from zenlake.wire.enums import Mapping, WirePriority
from zenlake.wire.network import NETWORK
from zenlake.wire.packed import PackedMessages
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr

PATIENCE = 60.0
CHUNK_BYTES = 256 << 10  # Bytes that the feed sends at once.
PLAIN_BYTES = 1 << 20  # Bytes that the plain loop writes before it syncs, as the recorder does.


def recorder(folder: str) -> None:
    """Run a recorder, and the plain loop beside it."""
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    config = session_config(zenlake, "peer", listen=endpoint)
    with tempfile.TemporaryDirectory(dir=folder) as here:
        place = Path(here)
        with Recorder(place / "log", FLOW, config=config, retain_bytes=1 << 30) as own:
            report(endpoint=endpoint)

            def arrived(expected: int, stall: float) -> None:
                until = time.perf_counter() + stall
                while own.stats().received < expected and time.perf_counter() < until:
                    time.sleep(0.001)
                mark = own.durable(PATIENCE)
                report(count=mark.offset, bytes=own.stats().bytes, time=time.perf_counter())

            serve(
                {
                    "arrived": arrived,
                    "counted": lambda: report(count=own.durable(PATIENCE).offset),
                    "plain": lambda size: report(seconds=write_plainly(place / "plain", size)),
                }
            )
        shutil.rmtree(place / "log")


def write_plainly(path: Path, size: int) -> float:
    """Return the seconds that a plain loop takes to write and sync `size` bytes."""
    chunk = os.urandom(PLAIN_BYTES)
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    start = time.perf_counter()
    for _ in range(-(-size // PLAIN_BYTES)):
        os.write(file, chunk)
        os.fdatasync(file)
    taken = time.perf_counter() - start
    os.close(file)
    path.unlink()
    return taken


def feed(endpoint: str) -> None:
    with Node(NodeConfig(offer=client()), Silent()) as node:
        session = node.connect(endpoint)
        session.send(Declare(DeclareKeyExpr(1, WireExpr(0, FLOW)), qos=qos.DECLARE))
        report(ok=True)

        def send(size: int, seconds: float = 0.0) -> None:
            w = ByteWriter()
            level = qos.QoS.from_byte(int(qos.DEFAULT) | qos.BLOCK)
            body = Put(bytes(size))
            NETWORK.write(w, Push(WireExpr(1, mapping=Mapping.SENDER), body, level))
            number = max(1, CHUNK_BYTES // len(w.out))
            data = memoryview(bytes(w.out) * number)
            ends = np.arange(1, number + 1, dtype=np.int64) * len(w.out)
            sent, start = 0, time.perf_counter()
            while time.perf_counter() < start + seconds:
                place = session.emit_lane(WirePriority.DATA, True)
                assert place is not None
                packed = PackedMessages(data, ends, 0, number, place)
                session.send_batches(packed, WirePriority.DATA, reliable=True)
                sent += number
            report(sent=sent, time=start)

        serve({"feed": send})


if __name__ == "__main__":
    run_role({"recorder": recorder, "feed": feed})
