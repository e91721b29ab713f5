"""Where Spark looks for `format("zenoh-lake")` by itself: every module named pyspark_*.

One that fails to import would hide all the others, so this never does.
"""

from contextlib import suppress

with suppress(Exception):
    from zenlake.lake.pipeline.sink import LakeDataSource as DefaultSource  # noqa: F401
