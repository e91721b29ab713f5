"""Routing: who gets what. Pure: messages and the time go in, messages for faces come out.

policy.py has the one table of roles; face.py a neighbour; topology.py who passes to whom;
resources.py and declarations.py who has and wants what; queries.py; core.py brings them together.
"""

from zenlake.routing.engine import Routing
from zenlake.routing.face import Face, Out

__all__ = ["Face", "Out", "Routing"]
