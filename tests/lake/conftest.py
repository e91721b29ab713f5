"""Starts the runtime of delta-rs before the leak check of the first test."""

import pytest

from tests.support.delta_runtime import start_delta_runtime


@pytest.fixture(scope="session", autouse=True)
def _delta_runtime(tmp_path_factory: pytest.TempPathFactory) -> None:
    start_delta_runtime(tmp_path_factory.mktemp("delta"))
