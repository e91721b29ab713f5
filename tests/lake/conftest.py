"""Opens what delta-rs keeps open in a process before the leak checks of the first test."""

from pathlib import Path

import pyarrow as pa
import pytest


@pytest.fixture(scope="session", autouse=True)
def _delta_is_awake(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Start the runtime of delta-rs, which keeps a pair of sockets for signals."""
    awaken(tmp_path_factory.mktemp("delta"))


def awaken(folder: Path) -> None:
    from deltalake import DeltaTable

    DeltaTable.create(folder, pa.schema([("one", pa.int64())]))
