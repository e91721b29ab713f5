"""The Arrow schema of a sample, for live, recorded and captured samples.

Knows names, types and what null means. Builds no column.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from zenlake.errors import ZError

KINDS = ("put", "delete")
CONGESTION_CONTROLS = ("drop", "block", "block_first")


REPEATING = pa.dictionary(pa.int32(), pa.string())
ONE_OF_A_FEW = pa.dictionary(pa.int8(), pa.string())

TIMESTAMP = pa.struct(
    [
        pa.field("time", pa.uint64(), nullable=False),  # NTP64, exact: order and HLC counter kept
        pa.field("id", REPEATING, nullable=False),  # the clock's Zenoh id, as text
    ]
)
SOURCE = pa.struct(
    [
        pa.field("id", REPEATING, nullable=False),
        pa.field("entity", pa.uint32(), nullable=False),
        pa.field("sn", pa.uint32(), nullable=False),
    ]
)

SAMPLE = pa.schema(
    [
        pa.field("key", REPEATING, nullable=False),
        pa.field("kind", ONE_OF_A_FEW, nullable=False),  # one of KINDS
        pa.field("payload", pa.binary()),  # null in a delete
        pa.field("encoding", REPEATING, nullable=False),  # the type: "application/json"
        pa.field("schema", REPEATING),  # text after ";"; invalid UTF-8 becomes U+FFFD
        pa.field("timestamp", TIMESTAMP),
        pa.field("source", SOURCE),
        pa.field("attachment", pa.binary()),
        pa.field("priority", pa.int8(), nullable=False),  # 0 (control) to 7 (background)
        pa.field("congestion_control", ONE_OF_A_FEW, nullable=False),
        pa.field("express", pa.bool_(), nullable=False),
        pa.field("reliable", pa.bool_(), nullable=False),  # the lane it was received on
        pa.field("received_at", pa.timestamp("us", "UTC")),  # null if no clock was read
    ]
)


def select_fields(fields: Iterable[Any], names: Sequence[str], given: str = "") -> list[Any]:
    """Return the fields called `names`, in that order; `given` says in errors who named them."""
    known = {field.name: field for field in fields}
    for name in names:
        if name not in known:
            raise ZError(f"no column {name!r}{given}: there are {', '.join(known)}")
    if len(set(names)) < len(names):
        raise ZError(f"columns are named more than once: {', '.join(names)}")
    return [known[name] for name in names]
