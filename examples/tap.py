"""A slow TCP proxy between two nodes that writes a packet capture, as tcpdump would."""

import socket
import struct
import threading
import time
from pathlib import Path
from typing import Self

HEADER = struct.pack(
    "<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262_144, 101
)  # pcap header: raw IP packets.
PIECE = 16 << 10  # Bytes copied at once.


class Tap:
    """Proxy of one connection to `endpoint`, limited to `bytes_per_second`."""

    def __init__(self, file: Path, target: int, bytes_per_second: float) -> None:
        self._file = file.open("wb")
        self._file.write(HEADER)
        self._bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.endpoint = f"tcp/127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        near = self._listener.accept()[0]
        with near, socket.create_connection(("127.0.0.1", self._target)) as far:
            port = near.getpeername()[1]
            back = threading.Thread(target=self._copy, args=(far, near, self.port, port))
            back.start()
            self._copy(near, far, port, self.port)
            back.join()

    def _copy(self, source: socket.socket, sink: socket.socket, src: int, dst: int) -> None:
        sequence = 1
        while data := source.recv(PIECE):
            self._capture(src, dst, sequence, data)
            sequence += len(data)
            sink.sendall(data)
            time.sleep(len(data) / self._bytes_per_second)
        sink.shutdown(socket.SHUT_WR)

    def _capture(self, src: int, dst: int, sequence: int, data: bytes) -> None:
        local = socket.inet_aton("127.0.0.1")
        tcp = struct.pack(
            "!HHIIBBHHH", src, dst, sequence & 0xFFFFFFFF, 1, 5 << 4, 0x18, 8192, 0, 0
        )
        size = 20 + len(tcp) + len(data)
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, size, 0, 0, 64, 6, 0, local, local)
        with self._lock:
            seconds, nanos = divmod(time.time_ns(), 10**9)
            self._file.write(struct.pack("<IIII", seconds, nanos // 1000, size, size))
            self._file.write(ip + tcp + data)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()  # Ends because both ends are closed.
        self._listener.close()
        self._file.close()
