"""The links of one simulated node: endpoints `memory/NAME`, with `#datagram=1` as datagrams.

Knows which node connects, so that partitions and faults can name both sides. Does not know time.
"""

from collections.abc import Mapping

from zenlake.errors import LinkError
from zenlake.link.base import Listener, TransportLink
from zenlake.link.options import LinkOptions
from zenlake.sim.memory_link import PROTOCOL, Faults, Network
from zenlake.wire.locator import EndPoint

DATAGRAM = "datagram"
FaultsByRoute = Mapping[tuple[str, str], Faults]
"Faults by (sender, receiver), where they differ from the network's default."


class SimulatedLinks:
    """Stand-in for `zenlake.link`: the links that one simulated node can open."""

    def __init__(self, network: Network, name: str, routes: FaultsByRoute) -> None:
        self._network = network
        self._name = name
        self._routes = routes

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
            faults=self._routes.get((self._name, address), default),
            back=self._routes.get((address, self._name), default),
        )

    def listen(self, endpoint: EndPoint, options: LinkOptions) -> Listener:
        return self._network.listen(self.resolve(endpoint)[0])
