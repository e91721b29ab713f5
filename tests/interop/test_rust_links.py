"""Links that the eclipse-zenoh wheel does not have, with a Rust node that does, from both sides.

Collected only where ZENLAKE_LINK_NODE names that program: `cargo build` in tests/support/link_node.
Those of vsock also need the kernel's vsock_loopback.
"""

import operator
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

import zenlake
from tests.golden.proxy import free_port
from tests.support.interop_pair import PATIENCE
from tests.support.link_contract import has_vsock_loopback
from tests.support.reference_peer import payload
from tests.support.serial_line import SerialLine
from tests.support.waiting import until

pytestmark = pytest.mark.interop

NODE = os.environ.get("ZENLAKE_LINK_NODE")
SIZES = [0, 1, 1000, 65_535, 65_536, 300_000, 3_000_000, 1] + [100] * 50
FRAME_SIZES = [0, 1, 1000, 1450, 1500, 1501, 20_000] + [100] * 20
"For a serial line, in whose batches 1500 bytes fit."


@contextmanager
def rust_node(side: str, endpoint: str) -> Iterator[subprocess.Popen[str]]:
    """Start a Rust node that listens or connects; it is open when this returns."""
    assert NODE is not None
    command = [NODE, "peer", side, endpoint]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("open")
            yield process
        finally:
            process.kill()


def our_config(side: str, endpoint: str) -> zenlake.Config:
    config = zenlake.Config()
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("listen/endpoints", "[]")
    config.insert_json5(f"{side}/endpoints", f'["{endpoint}"]')
    return config


def echo(session: zenlake.Session, sizes: list[int] = SIZES, *, one_by_one: bool = False) -> None:
    """Send messages of all sizes to the Rust node, and get each of them back."""
    got: list[bytes] = []
    with (
        session.declare_subscriber("pong/**", lambda sample: got.append(bytes(sample.payload))),
        session.declare_publisher(
            "ping/x", congestion_control=zenlake.CongestionControl.BLOCK
        ) as publisher,
    ):
        until(lambda: publisher.matching_status.matching)
        sent = [payload(index, size, True) for index, size in enumerate(sizes)]
        for number, data in enumerate(sent, 1):
            publisher.put(data)
            if one_by_one:
                until(lambda: len(got), partial(operator.le, number))
        until(lambda: len(got), lambda count: count >= len(sent))
        assert got == sent


def go_away(process: subprocess.Popen[str], session: zenlake.Session) -> None:
    """End the Rust node; our session loses its peer."""
    assert process.stdin is not None
    process.stdin.close()
    until(lambda: list(session.info.peers_zid()), lambda peers: not peers)
    assert process.wait(60) == 0


if NODE:

    def test_pipes_of_a_rust_listener(tmp_path: Path) -> None:
        at = f"unixpipe/{tmp_path}/p"
        with (
            rust_node("listen", at) as process,
            zenlake.open(our_config("connect", at)) as session,
        ):
            echo(session)
            go_away(process, session)
        assert list(tmp_path.iterdir()) == []

    def test_pipes_of_a_rust_connector(tmp_path: Path) -> None:
        at = f"unixpipe/{tmp_path}/p"
        with (
            zenlake.open(our_config("listen", at)) as session,
            rust_node("connect", at) as process,
        ):
            echo(session)
            go_away(process, session)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("listens", ["ours", "theirs"])
    def test_serial_lines(listens: str) -> None:
        with SerialLine() as line, ExitStack() as stack:
            ours, theirs = (f"serial/{end}" for end in line.ends)
            if listens == "theirs":
                process = stack.enter_context(rust_node("listen", theirs))
                session = stack.enter_context(zenlake.open(our_config("connect", ours)))
            else:
                session = stack.enter_context(zenlake.open(our_config("listen", ours)))
                process = stack.enter_context(rust_node("connect", theirs))
            (link,) = until(lambda: list(session.info.links()), within=PATIENCE)
            assert (str(link.src), link.mtu, link.is_streamed) == (ours, 1500, False)
            echo(session, FRAME_SIZES, one_by_one=True)
            line.noise(0, bytes(range(1, 200)))
            line.noise(0, b"\0half a frame\0")
            echo(session, FRAME_SIZES, one_by_one=True)
            if listens == "ours":  # A serial listener of Rust does not end in time.
                go_away(process, session)


if NODE and has_vsock_loopback():

    @pytest.mark.parametrize("listens", ["ours", "theirs"])
    def test_vsock(listens: str) -> None:
        at = f"vsock/VMADDR_CID_LOCAL:{free_port()}"
        with ExitStack() as stack:
            if listens == "theirs":
                process = stack.enter_context(rust_node("listen", at))
                session = stack.enter_context(zenlake.open(our_config("connect", at)))
            else:
                session = stack.enter_context(zenlake.open(our_config("listen", at)))
                process = stack.enter_context(rust_node("connect", at))
            (link,) = until(lambda: list(session.info.links()))
            assert str(link.src).startswith("vsock/")
            echo(session)
            go_away(process, session)
