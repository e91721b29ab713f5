"""World: a network of simulated nodes, built from a seed, with faults on demand.

Knows names, faults and virtual time. The nodes and their sessions are the production classes.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from random import Random
from typing import Any
from zlib import crc32

from zenlake.runtime.message_handler import MessageHandler
from zenlake.runtime.node import CLOSE_SECONDS, Node, NodeConfig, NodeHandler
from zenlake.sim.links import SimulatedLinks
from zenlake.sim.memory_link import PROTOCOL, Faults, MemoryLink, Network
from zenlake.sim.reactor import SimReactor
from zenlake.sim.trace import Trace
from zenlake.transport.offer import Offer
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.zenohid import MAX_BYTES, WireZenohId

NEAR = Faults(delay=(0.0005, 0.002))
"Default faults of links: a delay of 0.5 to 2 ms each way."

CONFIG_FIELDS = {field.name for field in fields(NodeConfig)} - {"offer"}

Names = str | Iterable[str]


class World:
    """Network of simulated nodes. Equal seeds and equal calls give equal traces, event by event."""

    def __init__(self, seed: int = 0, faults: Faults = NEAR) -> None:
        self.seed = seed
        self.trace = Trace()
        self.network = Network(seed, faults)
        self.network.tap = self._on_bytes
        self.reactor = SimReactor(self.network, self.trace)
        self.nodes: dict[str, Node] = {}
        self._created = 0
        self._routes: dict[tuple[str, str], Faults] = {}

    @property
    def now(self) -> float:
        """Seconds since the world began."""
        return self.network.now

    # ---- nodes

    def node(
        self,
        name: str,
        handler: NodeHandler | None = None,
        *,
        listen: bool = True,
        whatami: WireWhatAmI = WireWhatAmI.PEER,
        zid: WireZenohId | None = None,
        **settings: Any,
    ) -> Node:
        """Add a node that listens at `memory/NAME`. `settings`: fields of NodeConfig or Offer."""
        if name in self.nodes or not name.isidentifier():
            raise ValueError(f"{name!r} is in use or not a valid name: use letters, digits and '_'")
        self._created += 1
        entropy = Random(f"{self.seed} {self._created} {name}").randbytes
        config = {key: settings.pop(key) for key in CONFIG_FIELDS & settings.keys()}
        offer = Offer(zid=zid or WireZenohId(entropy(MAX_BYTES)), whatami=whatami, **settings)
        node = self.nodes[name] = Node(
            NodeConfig(**{"offer": offer, "entropy": entropy, **config}),
            handler or MessageHandler(lambda session, message, priority, reliable: None),
            reactor=self.reactor,
            network=SimulatedLinks(self.network, name, self._routes),
        )
        if listen:
            node.listen(f"{PROTOCOL}/{name}")
        return node

    def close(self, *names: str) -> None:
        """Close these nodes, or all of them, and run until they are closed."""
        waiting = set(names or self.nodes)
        for name in names or tuple(self.nodes):
            self.nodes.pop(name).shut(partial(waiting.discard, name))
        self.run_until(lambda: not waiting, within=CLOSE_SECONDS + 1)

    # ---- time

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        with self._noting_position():
            self.reactor.run(self.now + seconds)

    def run_until(self, condition: Callable[[], object], within: float) -> float:
        """Run until `condition()` holds; return the virtual seconds that passed.

        TimeoutError: it does not hold after `within` virtual seconds.
        """
        begin = self.now
        with self._noting_position():
            if not self.reactor.run(begin + within, lambda: bool(condition())):
                raise TimeoutError(f"the condition did not hold within {within:g} virtual seconds")
        return self.now - begin

    @contextmanager
    def _noting_position(self) -> Iterator[None]:
        """Add the seed, the time and the trace to an exception."""
        try:
            yield
        except Exception as error:
            error.add_note(
                f"World(seed={self.seed}), {self.now:.6f} s, {self.trace!r}; run the same calls "
                "with this seed to see it again; the last events are in `trace.last`"
            )
            raise

    # ---- faults

    def partition(self, some: Names, others: Names) -> None:
        """Let nothing pass between the two until heal()."""
        left, right = _names(some), _names(others)
        self.trace.add(f"{self.now!r} partition {left} {right}")
        self.network.partition(left, right)

    def heal(self) -> None:
        """End every partition."""
        self.trace.add(f"{self.now!r} heal")
        self.network.heal()

    def links(self, name: str, peer: str | None = None) -> list[MemoryLink]:
        """Return the ends at `name` of its links with `peer`, or of all its links."""
        return [
            end
            for end in self.reactor.watched
            if isinstance(end, MemoryLink)
            and end.local.address.partition(":")[0] == name
            and peer in (None, end.address)
        ]

    def cut(self, name: str, peer: str | None = None, *, after: int = 0, reset: bool = True) -> int:
        """Break the links of `name`, now or `after` more sent bytes; return their number."""
        found = self.links(name, peer)
        self.trace.add(f"{self.now!r} cut {len(found)} of {name} {peer}")
        for link in found:
            self.network.cut(link, after=after, reset=reset)
        return len(found)

    def half_open(self, name: str, peer: str) -> int:
        """Lose what `name` sends to `peer` on the existing links; return their number."""
        found = self.links(name, peer)
        self.trace.add(f"{self.now!r} half-open {len(found)} of {name} {peer}")
        for link in found:
            self.network.half_open(link)
        return len(found)

    def set_faults(self, name: str, peer: str, faults: Faults) -> None:
        """Set the faults for everything that `name` sends to `peer`, on new links too."""
        self.trace.add(f"{self.now!r} {faults} {name} {peer}")
        self._routes[name, peer] = faults
        for link in self.links(name, peer):
            self.network.set_faults(link, faults)

    def _on_bytes(self, end: MemoryLink, data: bytes) -> None:
        self.trace.add(f"{self.now!r} bytes {end.route} {len(data)} {crc32(data):08x}")

    def __repr__(self) -> str:
        return f"<World {self.seed}: {len(self.nodes)} nodes at {self.now:g} s>"


def _names(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
