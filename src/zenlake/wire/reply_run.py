"""Replies to one request, as the scan has read them: objects are made when they are read.

Knows the rows of PUT and DEL within RESPONSE. Does not know consolidation, nor ids of keys: the
full keys are given.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from zenlake.wire import put
from zenlake.wire.delete import Del
from zenlake.wire.encoding import WireEncoding
from zenlake.wire.entity import WireEntityId, WireSourceInfo
from zenlake.wire.enums import Consolidation, Mapping
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.reply import WireReply
from zenlake.wire.response import Response
from zenlake.wire.scan import Rows
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

CACHED = 1024  # Ids and encodings that are made once.

_CONSOLIDATIONS = tuple(Consolidation)
_FIELDS = (
    *("body", "consolidation", "encoding", "schema", "schema_len", "payload", "payload_len"),
    *("time", "clock", "clock_len", "source", "source_len", "source_eid", "source_sn"),
    *("attachment", "attachment_len", "responder", "responder_len", "responder_eid"),
)


@dataclass(frozen=True, slots=True, eq=False)
class ReplyRun:
    """Replies to one request that were received together; none is an ERR."""

    request_id: int
    "Id of the request at the session that gets the replies."
    qos: QoS
    keys: list[str]
    "Distinct keys."
    codes: npt.NDArray[np.int32]
    "Number of each reply's key."
    data: bytes
    base: int
    "Position in `data` from which the rows count."
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, wanted: Sequence[bool]) -> "ReplyRun":
        """Return the replies whose key is wanted."""
        if all(wanted):
            return self
        keep = np.array(wanted)[self.codes]
        return replace(self, codes=self.codes[keep], rows=self.rows[keep])

    def responses(self) -> Iterator[Response]:
        """Yield each reply as a message with its full key, without extensions that are unknown."""
        data, base, request_id, qos = self.data, self.base, self.request_id, self.qos
        keys = [WireExpr(0, key, Mapping.SENDER) for key in self.keys]
        columns = (self.rows[name].tolist() for name in _FIELDS)
        for (
            code,
            kind,
            consolidation,
            encoding,
            schema,
            schema_len,
            payload,
            payload_len,
            time,
            clock,
            clock_len,
            source,
            source_len,
            source_eid,
            source_sn,
            attachment,
            attachment_len,
            responder,
            responder_len,
            responder_eid,
        ) in zip(self.codes.tolist(), *columns, strict=True):
            stamp = info = attached = None
            if clock:
                clock += base
                stamp = WireTimestamp(time, _zid(data[clock : clock + clock_len]))
            if source:
                source += base
                entity = _entity(data[source : source + source_len], source_eid)
                info = WireSourceInfo(entity, source_sn)
            if attachment:
                attachment += base
                attached = data[attachment : attachment + attachment_len]
            body: Put | Del
            if kind == put.ID:
                payload += base
                name = data[base + schema : base + schema + schema_len] if schema else None
                body = Put(
                    data[payload : payload + payload_len],
                    stamp,
                    _encoding(encoding, name),
                    info,
                    attached,
                )
            else:
                body = Del(stamp, info, attached)
            replier = None
            if responder:
                responder += base
                replier = _entity(data[responder : responder + responder_len], responder_eid)
            reply = WireReply(body, _CONSOLIDATIONS[consolidation])
            yield Response(request_id, keys[code], reply, qos, None, replier)


_zid = lru_cache(CACHED)(WireZenohId)
_encoding = lru_cache(CACHED)(WireEncoding)


@lru_cache(CACHED)
def _entity(raw: bytes, eid: int) -> WireEntityId:
    return WireEntityId(WireZenohId(raw), eid)
