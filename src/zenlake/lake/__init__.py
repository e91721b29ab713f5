"""A lake: tables made of what Zenoh says, by flows on Spark, and Spark's view of them.

What transformations use is here by name. Importing this loads neither Spark nor Arrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zenlake.lake.pipeline.flows import decoded, flow, read, stream
    from zenlake.lake.project import Project

__all__ = ["Project", "decoded", "flow", "read", "stream"]

_HOMES = {
    "Project": "zenlake.lake.project",
    "decoded": "zenlake.lake.pipeline.flows",
    "flow": "zenlake.lake.pipeline.flows",
    "read": "zenlake.lake.pipeline.flows",
    "stream": "zenlake.lake.pipeline.flows",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'zenlake.lake' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
