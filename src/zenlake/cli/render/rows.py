"""Rows of a log as samples, so that they are printed like those of a subscriber.

Knows the columns of columnar/schema.py. Does not know files or the terminal.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import zenlake
from zenlake.cli.quantities import format_time
from zenlake.quantities import EPOCH, counted, plural
from zenlake.wire.delete import Del
from zenlake.wire.encoding import SCHEMA_SEPARATOR, WireEncoding
from zenlake.wire.entity import WireEntityId, WireSourceInfo
from zenlake.wire.enums import WireCongestionControl, WirePriority
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.zenohid import WireZenohId

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]


def read_rows(batch: "pa.RecordBatch") -> Iterator[Row]:
    """Yield each row as a dict, its time of reception as text."""
    for row in batch.to_pylist():
        row["received_at"] = format_time(_nanos(row["received_at"]))
        yield row


def _nanos(when: datetime) -> int:
    return (when - EPOCH) // timedelta(microseconds=1) * 1000


def build_sample(row: Row) -> "zenlake.Sample":
    """Return the sample that a subscriber would have received; not for a row of loss."""
    meta: dict[str, Any] = {
        "timestamp": _timestamp(row["timestamp"]),
        "source_info": _source(row["source"]),
        "attachment": row["attachment"],
    }
    body: Put | Del = (
        Del(**meta)
        if row["kind"] == "delete"
        else Put(row["payload"], encoding=_encoding(row), **meta)
    )
    control = WireCongestionControl[row["congestion_control"].upper()]
    qos = QoS(WirePriority(row["priority"]), control, express=row["express"])
    return zenlake.Sample.of(row["key"], body, qos, row["reliable"])


def _timestamp(stamp: Row | None) -> WireTimestamp | None:
    return None if stamp is None else WireTimestamp(stamp["time"], WireZenohId.parse(stamp["id"]))


def _source(source: Row | None) -> WireSourceInfo | None:
    if source is None:
        return None
    return WireSourceInfo(
        WireEntityId(WireZenohId.parse(source["id"]), source["entity"]), source["sn"]
    )


def _encoding(row: Row) -> WireEncoding:
    schema = row["schema"]
    text = row["encoding"] if schema is None else f"{row['encoding']}{SCHEMA_SEPARATOR}{schema}"
    return WireEncoding.parse(text)


def describe_loss(loss: Row) -> str:
    """Return a record of loss in words.

    >>> loss = {"kind": "lane", "id": "ab", "priority": 5, "reliable": True,
    ...         "entity": 0, "first": 4, "last": 6, "count": 3}
    >>> describe_loss(loss)
    'lane: 3 frames from ab, numbers 4 to 6 of its reliable lane 5, never came'
    """
    number = loss["count"]
    frames, samples = (
        f"some {plural(noun)}" if number is None else counted(number, noun)
        for noun in ("frame", "sample")
    )
    were = "was" if number == 1 else "were"
    numbers = f"numbers {loss['first']} to {loss['last']}"
    reliability = "reliable" if loss["reliable"] else "best-effort"
    lane = f"{reliability} lane {loss['priority']}"
    entity = f"{loss['id']}/{loss['entity']}"
    text = {
        "lane": f"{frames} from {loss['id']}, {numbers} of its {lane}, never came",
        "source": f"{samples} of {entity}, {numbers}, never came",
        "link": f"the link to {loss['id']} ended; samples until the next one may be missing",
        "dropped": f"{samples} {were} dropped by the recorder",
    }
    return f"{loss['kind']}: {text[loss['kind']]}"
