"""Simulator: nodes on links in memory, under one virtual clock; a seed decides every fault.

Runs the production Node and TransportSession. Does not use sockets, threads or a wall clock.

>>> world = World(seed=7)
>>> a, b = world.node("a"), world.node("b")
>>> connector = a.keep_connected("memory/b")
>>> world.run(1); world.partition("a", "b"); world.run(60); len(a.sessions)
0
>>> world.heal(); seconds = world.run_until(lambda: b.zid in a.sessions, within=15)
"""

from zenlake.sim.memory_link import Faults
from zenlake.sim.trace import Trace
from zenlake.sim.world import World

__all__ = ["Faults", "Trace", "World"]
