"""Rows of the sample schema, made from message objects: what every columnar reader must produce."""

from typing import Any

from zenlake.wire.encoding import CUSTOM_ID, WireEncoding
from zenlake.wire.push import Push
from zenlake.wire.put import Put


def sample_row(push: Push, key: str | None, *, reliable: bool) -> dict[str, Any]:
    """Return the row of a sample that was not recorded: it has no time of reception."""
    body = push.body
    encoding = body.encoding if isinstance(body, Put) else WireEncoding()
    kind, schema = encoding.type, encoding.schema
    text = None if schema is None else schema.decode(errors="replace")
    if encoding.id == CUSTOM_ID and text is not None:
        kind, separator, rest = text.partition(";")
        text = rest if separator else None
    stamp, source = body.timestamp, body.source_info
    return {
        "key": key,
        "kind": "put" if isinstance(body, Put) else "delete",
        "payload": body.payload if isinstance(body, Put) else None,
        "encoding": kind,
        "schema": text,
        "timestamp": None if stamp is None else {"time": stamp.time, "id": str(stamp.id)},
        "source": None
        if source is None
        else {"id": str(source.id.zid), "entity": source.id.eid, "sn": source.sn},
        "attachment": body.attachment,
        "priority": int(push.qos.priority),
        "congestion_control": push.qos.congestion_control.name.lower(),
        "express": push.qos.express,
        "reliable": reliable,
        "received_at": None,
    }
