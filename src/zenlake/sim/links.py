"""The links of one simulated node: endpoints `memory/NAME`, with `#datagram=1` as datagrams.

Knows who dials, so that partitions and faults can name both sides. Does not know time.
"""

from collections.abc import Mapping

from zenlake.errors import LinkError
from zenlake.link.base import Listener, TransportLink
from zenlake.link.options import LinkOptions
from zenlake.sim.memory_link import PROTOCOL, Faults, Network
from zenlake.wire.locator import EndPoint

DATAGRAM = "datagram"
FaultsByRoute = Mapping[tuple[str, str], Faults]
"By (sender, receiver), where they are not the network's own."


class SimulatedLinks:
    """What `zenlake.link` is in a real network."""

    def __init__(self, network: Network, name: str, ways: FaultsByRoute) -> None:
        self._network = network
        self._name = name
        self._ways = ways

    def resolve(self, endpoint: EndPoint) -> list[str]:
        if endpoint.protocol != PROTOCOL:
            raise LinkError(f"{endpoint}: in a simulation the protocol is {PROTOCOL}")
        return [endpoint.address]

    def connect(self, endpoint: EndPoint, address: str, options: LinkOptions) -> TransportLink:
        default = self._network.faults
        return self._network.connect(
            address,
            datagram=endpoint.config.get(DATAGRAM) == "1",
            source=self._name,
            faults=self._ways.get((self._name, address), default),
            back=self._ways.get((address, self._name), default),
        )

    def listen(self, endpoint: EndPoint, options: LinkOptions) -> Listener:
        return self._network.listen(self.resolve(endpoint)[0])
