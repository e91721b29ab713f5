"""Zenoh in Python, from the wire to the lakehouse.

`import zenlake as zenoh` is `eclipse-zenoh`'s API and more. Importing this loads nothing heavy: the
API, NumPy, Numba, Arrow and Spark load when something that needs them is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zenlake.api import *  # noqa: F403

__version__ = "0.1.0"

_MODULES = ("aio", "capture", "ext", "handlers", "log", "router", "shm", "spark")
_FUNCTIONS = ("init_log_from_env_or", "open", "scout", "try_init_log_from_env")
_STARRED = ("ext", "handlers", "shm")  # what `import *` brings besides the API's names


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"zenlake.{name}")
    if name == "__all__":
        return [*import_module("zenlake.api").__all__, *_STARRED]
    if name[0].isupper() or name in _FUNCTIONS:  # not a module: those load without the API
        api = import_module("zenlake.api")
        if name in api.__all__:
            value = getattr(api, name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'zenlake' has no attribute {name!r}")


def __dir__() -> list[str]:
    api: list[str] = import_module("zenlake.api").__all__
    return sorted({*globals(), *api, *_MODULES})
