"""Router mode: a session that passes on what others say, as a command, or in a test or notebook.

Composed of the session API's parts: knows how to start, watch and end one. Speaks no protocol.
"""

from zenlake.router.running import Event, Router, run

__all__ = ["Event", "Router", "run"]
