"""UDP relay that drops some datagrams, as a bad radio link does.

Knows UDP and one robot. Does not know what the datagrams mean.
"""

import random
import selectors
import socket
import threading
from typing import Self

BIGGEST = 65_535  # Upper bound on the bytes of a datagram.
LOOK_SECONDS = 0.1  # Longest time until the thread sees the end.
JOIN_SECONDS = 5.0


class LossyLink:
    """Relay between a robot and `port` that drops some of the robot's datagrams while `losing`."""

    def __init__(self, port: int, share: float, seed: int) -> None:
        self.losing = False
        self.lost = 0
        self._share = share
        self._random = random.Random(seed)
        self._robot = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._robot.bind(("127.0.0.1", 0))
        self._router = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._router.connect(("127.0.0.1", port))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lossy way", daemon=True)
        self.endpoint = f"udp/127.0.0.1:{self._robot.getsockname()[1]}"

    def _run(self) -> None:
        robot: tuple[str, int] | None = None
        with selectors.DefaultSelector() as ready:
            for end in (self._robot, self._router):
                ready.register(end, selectors.EVENT_READ)
            while not self._ended.is_set():
                for key, _ in ready.select(LOOK_SECONDS):
                    try:
                        if key.fileobj is self._robot:
                            data, robot = self._robot.recvfrom(BIGGEST)
                            if self.losing and self._random.random() < self._share:
                                self.lost += 1
                            else:
                                self._router.send(data)
                        elif robot is not None:
                            self._robot.sendto(self._router.recv(BIGGEST), robot)
                    except ConnectionRefusedError:
                        pass  # One end has closed; the session of the other end will notice.

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(JOIN_SECONDS)
        self._robot.close()
        self._router.close()
