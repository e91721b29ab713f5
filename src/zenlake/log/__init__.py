"""The log: a recording of Zenoh, durable before it is visible (docs/log-format.md).

Knows blocks, segments, recovery, retention, recording and replay. Does not know Spark.
"""
