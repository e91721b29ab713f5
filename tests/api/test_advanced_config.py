"""The configurations take and refuse what those of the reference do, and are values."""

import copy
import inspect
import pickle
from datetime import timedelta
from typing import Any

import pytest
import zenoh.ext

from zenlake import ext
from zenlake.api.values.enums import CongestionControl, Priority
from zenlake.ext import (
    CacheConfig,
    HistoryConfig,
    MissDetectionConfig,
    RecoveryConfig,
    RepliesConfig,
)
from zenlake.ext.advanced_config import MIN_PERIOD, seconds

SECOND = timedelta(seconds=1)

CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("RecoveryConfig", (), {}),
    ("RecoveryConfig", (), {"periodic_queries": SECOND}),
    ("RecoveryConfig", (), {"periodic_queries": -SECOND}),
    ("RecoveryConfig", (), {"periodic_queries": SECOND * 0}),
    ("RecoveryConfig", (), {"heartbeat": True}),
    ("RecoveryConfig", (), {"heartbeat": False}),
    ("RecoveryConfig", (), {"heartbeat": True, "periodic_queries": SECOND}),
    ("RecoveryConfig", (), {"heartbeat": None, "periodic_queries": None}),
    ("RecoveryConfig", (), {"heartbeat": 1}),
    ("RecoveryConfig", (SECOND,), {}),
    ("MissDetectionConfig", (), {}),
    ("MissDetectionConfig", (), {"heartbeat": 0}),
    ("MissDetectionConfig", (), {"heartbeat": -1}),
    ("MissDetectionConfig", (), {"heartbeat": "x"}),
    ("MissDetectionConfig", (), {"heartbeat": float("nan")}),
    ("MissDetectionConfig", (), {"heartbeat": 1, "sporadic_heartbeat": 2.5}),
    ("MissDetectionConfig", (1,), {}),
    ("HistoryConfig", (), {}),
    ("HistoryConfig", (), {"max_samples": 0}),
    ("HistoryConfig", (), {"max_samples": -1}),
    ("HistoryConfig", (), {"max_samples": 1.5}),
    ("HistoryConfig", (), {"max_age": 0}),
    ("HistoryConfig", (), {"max_age": SECOND}),
    ("HistoryConfig", (), {"detect_late_publishers": 1}),
    ("HistoryConfig", (), {"detect_late_publishers": True, "max_samples": 3, "max_age": 1.5}),
    ("CacheConfig", (), {}),
    ("CacheConfig", (0,), {}),
    ("CacheConfig", (-1,), {}),
    ("CacheConfig", (3,), {}),
    ("CacheConfig", ("x",), {}),
    ("CacheConfig", (), {"max_samples": 2**70}),
    ("CacheConfig", (3, None), {}),
    ("RepliesConfig", (), {}),
    ("RepliesConfig", (), {"express": True}),
    ("RepliesConfig", (), {"express": 1}),
    ("RepliesConfig", (), {"priority": 3}),
    ("RepliesConfig", (), {"congestion_control": "BLOCK"}),
    ("Miss", (), {}),
    ("AdvancedPublisher", (), {}),
    ("AdvancedSubscriber", (), {}),
    ("SampleMissListener", (), {}),
]


@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_accepted_or_refused_alike(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    def outcome(module: Any) -> type:
        try:
            getattr(module, name)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # the kind of it is the question
            return type(error)
        return type(None)

    assert outcome(ext) is outcome(zenoh.ext)


@pytest.mark.parametrize("name", ["declare_advanced_publisher", "declare_advanced_subscriber"])
def test_declarations_have_the_signature_of_the_reference(name: str) -> None:
    def shape(function: Any) -> list[tuple[str, Any, Any]]:
        parameters = inspect.signature(function).parameters.values()
        return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]

    assert shape(getattr(ext, name)) == shape(getattr(zenoh.ext, name))


@pytest.mark.parametrize("name", ["AdvancedPublisher", "AdvancedSubscriber", "SampleMissListener"])
def test_classes_have_what_those_of_the_reference_have(name: str) -> None:
    theirs = {member for member in dir(getattr(zenoh.ext, name)) if not member.startswith("_")}
    assert theirs <= set(dir(getattr(ext, name)))


@pytest.mark.parametrize(
    "value",
    [
        CacheConfig(3, replies_config=RepliesConfig(priority=Priority.DATA_LOW)),
        RepliesConfig(congestion_control=CongestionControl.DROP, express=True),
        HistoryConfig(max_samples=2, max_age=1.5, detect_late_publishers=True),
        RecoveryConfig(heartbeat=True),
        RecoveryConfig(periodic_queries=0.5),
        MissDetectionConfig(sporadic_heartbeat=1),
    ],
)
def test_configs_are_equal_after_pickle_and_copy(value: Any) -> None:
    again = pickle.loads(pickle.dumps(value))
    assert again == value == copy.deepcopy(value)
    assert hash(again) == hash(value)
    assert again != CacheConfig(4)


def test_a_period_may_be_a_number_or_a_timedelta() -> None:
    assert seconds("x", 2) == seconds("x", timedelta(seconds=2)) == 2.0
    assert seconds("x", 0) == MIN_PERIOD
    assert seconds("x", None) is None
    assert RecoveryConfig(periodic_queries=2).periodic_queries == 2
