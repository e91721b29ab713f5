"""Packet captures: pcap and pcapng to one row for every Zenoh message.

`streams` lists what is in a file, `read` gives record batches in the schema `CAPTURE`. Importing
this loads neither Arrow nor Numba; reading does.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from zenlake.capture.report import CaptureError, Report, Stream

if TYPE_CHECKING:
    from zenlake.capture.reading import Reading, read, streams
    from zenlake.capture.schema import CAPTURE

__all__ = ["CAPTURE", "CaptureError", "Reading", "Report", "Stream", "read", "streams"]

_HOMES = {"CAPTURE": "schema", "Reading": "reading", "read": "reading", "streams": "reading"}

if not TYPE_CHECKING:  # Checkers know the names from above, and that there are no others.

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'zenlake.capture' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"zenlake.capture.{_HOMES[name]}"), name)
        return value
