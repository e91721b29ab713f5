"""Routing: which faces get a message. Pure: messages and time go in, messages for faces come out.

engine.py dispatches; policy.py is the one table of roles; face.py a neighbour; topology.py between
which faces messages pass; resources.py, declarations.py, interests.py and queries.py the tables.
"""

from zenlake.routing.engine import Routing
from zenlake.routing.face import Face, Out

__all__ = ["Face", "Out", "Routing"]
