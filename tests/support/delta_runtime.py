"""Starts the runtime of delta-rs, which keeps a pair of sockets open until the process ends."""

from pathlib import Path

import pyarrow as pa


def start_delta_runtime(folder: Path) -> None:
    """Create a table in `folder`, so that the sockets are open before a leak check counts."""
    from deltalake import DeltaTable

    DeltaTable.create(folder, pa.schema([("column", pa.int64())]))
