"""One Kafka broker in KRaft mode, on free ports of the loopback interface.

Starts it from its jars with its data in a folder, and ends it. Does not know topics.
"""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.kafka.installation import Installation
from bench.peer import free_port, wait_until

HOST = "127.0.0.1"
HEAP = "512m"
PATIENCE = 120.0  # Seconds that a start or an end may take.
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"  # Any sixteen bytes in base64.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=2
auto.create.topics.enable=false
# The fleet's samples are of the future.
log.message.timestamp.after.max.ms=9223372036854775807
"""


@contextmanager
def run_broker(installation: Installation, folder: Path) -> Iterator[str]:
    """Run a broker with its data in `folder`; yield its address."""
    folder.mkdir(parents=True)
    properties, log = folder / "server.properties", folder / "broker.log"
    port = free_port()
    properties.write_text(
        PROPERTIES.format(host=HOST, port=port, controller=free_port(), data=folder / "data")
    )
    environment = installation.environment()
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java") or "java"
    command = [java, f"-Xmx{HEAP}", f"-Djava.io.tmpdir={folder}", "-cp", f"{installation.broker}/*"]
    with log.open("w") as output:

        def start(*arguments: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [*command, *arguments], stdout=output, stderr=output, env=environment
            )

        storage = start(
            "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)
        )
        if storage.wait(PATIENCE):
            raise RuntimeError(f"the broker's folder cannot be formatted: {log.read_text()}")
        broker = start("kafka.Kafka", str(properties))
        try:
            wait_until(lambda: _listens(broker, port, log), "the broker", PATIENCE)
            yield f"{HOST}:{port}"
        finally:
            _end(broker)


def _listens(broker: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    """Return whether the broker accepts connections. RuntimeError: it has ended."""
    if broker.poll() is not None:
        raise RuntimeError(f"the broker has ended: {log.read_text()}")
    try:
        socket.create_connection((HOST, port)).close()
    except ConnectionRefusedError:
        return False
    return True


def _end(broker: subprocess.Popen[bytes]) -> None:
    broker.terminate()
    try:
        broker.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        broker.kill()
        broker.wait()
