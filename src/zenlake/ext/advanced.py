"""Advanced publishers and subscribers: history, recovery, miss detection, mutual detection.

The names of `zenlake.ext` that belong to them; what they do is in the modules beside this one.
"""

from zenlake.ext.advanced_config import (
    CacheConfig,
    HistoryConfig,
    Miss,
    MissDetectionConfig,
    RecoveryConfig,
    RepliesConfig,
)
from zenlake.ext.advanced_publisher import AdvancedPublisher, declare_advanced_publisher
from zenlake.ext.advanced_subscriber import (
    AdvancedSubscriber,
    SampleMissListener,
    declare_advanced_subscriber,
)

__all__ = [
    "AdvancedPublisher",
    "AdvancedSubscriber",
    "CacheConfig",
    "HistoryConfig",
    "Miss",
    "MissDetectionConfig",
    "RecoveryConfig",
    "RepliesConfig",
    "SampleMissListener",
    "declare_advanced_publisher",
    "declare_advanced_subscriber",
]
