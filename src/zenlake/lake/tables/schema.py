"""Columns of the tables as Arrow schemas that Spark and Delta can store.

Knows names, types and the meaning of null. Does not know tables or files.
"""

import pyarrow as pa

TIME = pa.timestamp("us", "UTC")

TIMESTAMP = pa.struct(
    [
        pa.field("time", TIME),  # Truncated to microseconds.
        pa.field(
            "ntp64", pa.int64()
        ),  # All 64 bits; as a signed number they sort by time until 2038-01-19.
        pa.field("id", pa.string()),
    ]
)
SOURCE = pa.struct(
    [pa.field("id", pa.string()), pa.field("entity", pa.int64()), pa.field("sn", pa.int64())]
)
VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False),
    ]
)
HISTOGRAM = pa.list_(pa.struct([pa.field("bucket", pa.int32()), pa.field("count", pa.int64())]))

HLC = pa.field("hlc", pa.int64())  # NTP64 of the timestamp, or of received_at if there is none.
DAY = pa.field("day", pa.date32())  # UTC day of received_at.
RECEIVED_AT = pa.field("received_at", TIME)
PLACE = (pa.field("partition", pa.int32()), pa.field("offset", pa.int64()))  # Position in the log.

SAMPLE = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("kind", pa.string()),  # Is "put" or "delete".
        pa.field("payload", pa.binary()),
        pa.field("encoding", pa.string()),
        pa.field("schema", pa.string()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("source", SOURCE),
        pa.field("attachment", pa.binary()),
        pa.field("priority", pa.int8()),
        pa.field("congestion_control", pa.string()),
        pa.field("express", pa.bool_()),
        pa.field("reliable", pa.bool_()),
        RECEIVED_AT,
        *PLACE,
    ]
)
"Columns of a log row as the Spark data source returns it."

LATEST = pa.schema([*SAMPLE, HLC])
SAMPLES = pa.schema([*LATEST, DAY])
TOMBSTONES = pa.schema(
    [
        pa.field("key", pa.string()),
        HLC,
        pa.field("timestamp", TIMESTAMP),
        *PLACE,
        RECEIVED_AT,
    ]
)
LOSS = pa.schema(
    [
        pa.field("at", TIME),  # Time at which the loss record was written (its received_at).
        pa.field("kind", pa.string()),  # Is "lane", "source", "link" or "dropped".
        pa.field("id", pa.string()),
        pa.field("entity", pa.int64()),
        pa.field("priority", pa.int8()),
        pa.field("reliable", pa.bool_()),
        pa.field("first", pa.int64()),
        pa.field("last", pa.int64()),
        pa.field("count", pa.int64()),  # Number of lost samples; null if it cannot be known.
        *PLACE,  # Position of the first row after the loss.
        DAY,
    ]
)
_DECODED = (
    pa.field("key", pa.string()),
    HLC,
    pa.field("timestamp", TIMESTAMP),
    pa.field("source", SOURCE),
    RECEIVED_AT,
    *PLACE,
    pa.field("encoding", pa.string()),
    pa.field("schema", pa.string()),
    pa.field("decoder", pa.string()),
)
MESSAGES = pa.schema([*_DECODED, pa.field("value", VARIANT), DAY])
MESSAGES_FAILED = pa.schema(
    [*_DECODED, pa.field("payload", pa.binary()), pa.field("reason", pa.string()), DAY]
)
HEALTH = pa.schema(
    [
        pa.field("minute", TIME),
        pa.field("key", pa.string()),
        pa.field("source_id", pa.string()),  # Null, like entity, for samples without a source.
        pa.field("entity", pa.int64()),
        pa.field("count", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("min_bytes", pa.int64()),
        pa.field("max_bytes", pa.int64()),
        pa.field("rate", pa.float64()),  # Samples per second: count / 60.
        pa.field("gaps", pa.int64()),  # last_sn - first_sn + 1 - count; null without a source.
        pa.field("first_sn", pa.int64()),
        pa.field("last_sn", pa.int64()),
        pa.field("duplicates", pa.int64()),
        pa.field("latency_median", pa.float64()),  # Seconds; null without timestamps.
        pa.field("latency_p99", pa.float64()),
        pa.field("latency_histogram", HISTOGRAM),
        pa.field("first_seen", TIME),
        pa.field("last_seen", TIME),
        pa.field("silence", pa.float64()),  # Longest time between two samples, in seconds.
    ]
)
