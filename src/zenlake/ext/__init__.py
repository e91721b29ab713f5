"""Extensions on top of a session: serialisation, and advanced publishers and subscribers."""

from typing import TYPE_CHECKING, Any

from zenlake.ext.serialization import (
    Float32,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Int128,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    UInt128,
    ZDeserializeError,
    z_deserialize,
    z_serialize,
)

if TYPE_CHECKING:
    from zenlake.ext.advanced import (
        AdvancedPublisher,
        AdvancedSubscriber,
        CacheConfig,
        HistoryConfig,
        Miss,
        MissDetectionConfig,
        RecoveryConfig,
        RepliesConfig,
        SampleMissListener,
        declare_advanced_publisher,
        declare_advanced_subscriber,
    )

__all__ = [
    "AdvancedPublisher",
    "AdvancedSubscriber",
    "CacheConfig",
    "Float32",
    "Float64",
    "HistoryConfig",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "Int128",
    "Miss",
    "MissDetectionConfig",
    "RecoveryConfig",
    "RepliesConfig",
    "SampleMissListener",
    "UInt8",
    "UInt16",
    "UInt32",
    "UInt64",
    "UInt128",
    "ZDeserializeError",
    "declare_advanced_publisher",
    "declare_advanced_subscriber",
    "z_deserialize",
    "z_serialize",
]


def __getattr__(name: str) -> Any:
    """Load the advanced names on first use: they need a session."""
    if name in __all__:
        from zenlake.ext import advanced

        return getattr(advanced, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
