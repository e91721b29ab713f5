"""Arrow: a subscriber that yields record batches, and record batches that are put at once.

Knows the schema of `columnar/` and its limits. No Python runs for each sample. Arrow, NumPy and
Numba load when this is first used.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from zenlake.api.sample import Sample
from zenlake.api.subscriber import RunSink
from zenlake.errors import ZError

if TYPE_CHECKING:
    import pyarrow as pa

    from zenlake.api.core import Core
    from zenlake.api.publisher import Way
    from zenlake.columnar.read import SampleBatcher
    from zenlake.wire.runs import Run


class ArrowBatches:
    """A handler for `declare_subscriber`."""


def put_batch(core: "Core", batch: "pa.RecordBatch", way: "Way | None") -> int:
    raise NotImplementedError
