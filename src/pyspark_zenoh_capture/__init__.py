"""Where Spark looks for `format("zenoh-capture")` by itself: every module named pyspark_*.

One that fails to import would hide all the others, so this never does.
"""

from contextlib import suppress

with suppress(Exception):
    from zenlake.spark.capture_source import CaptureDataSource as DefaultSource  # noqa: F401
