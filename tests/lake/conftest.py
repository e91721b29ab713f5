"""What delta-rs opens once in a process and keeps is open before the first test looks."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _delta(tmp_path_factory: pytest.TempPathFactory) -> None:
    from deltalake import DeltaTable

    DeltaTable.is_deltatable(str(tmp_path_factory.mktemp("delta")))
