"""The process of eclipse-zenoh that a module's conversations share, and what they are held to."""

import logging
from collections.abc import Iterator

import pytest

from tests.support.reference_peer import ReferenceProcess


@pytest.fixture(scope="module")
def reference() -> Iterator[ReferenceProcess]:
    with ReferenceProcess() as process:
        yield process


@pytest.fixture
def nothing_logged_as_error(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No defect of ours may be only logged."""
    yield
    errors = [r.getMessage() for r in caplog.get_records("call") if r.levelno >= logging.ERROR]
    assert not errors
