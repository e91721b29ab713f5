"""Entry point of `format("zenoh-lake")`: Spark imports every module named pyspark_*.

An import error would hide the data sources of all such modules, so this module never raises one.
"""

from contextlib import suppress

with suppress(Exception):
    from zenlake.lake.pipeline.sink import LakeDataSource as DefaultSource  # noqa: F401
