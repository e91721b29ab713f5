"""Reply and ReplyError: the answers to a query.

Knows the API objects for RESPONSE. Does not know the query, nor consolidation.
"""

from typing import final

from zenlake.api.values.encoding import Encoding
from zenlake.api.values.ids import EntityGlobalId
from zenlake.api.values.instrumentation import TimestampStack
from zenlake.api.values.sample import Sample
from zenlake.api.values.wrapped import Wrapped
from zenlake.api.values.zbytes import ZBytes
from zenlake.wire.err import Err
from zenlake.wire.put import Slice
from zenlake.wire.response import Response


@final
class ReplyError(Wrapped[Response]):
    """Error reply to a query; made by `Query.reply_err`, or by a timeout."""

    __slots__ = ()

    @property
    def payload(self) -> ZBytes:
        """Error text or data, in the replier's words."""
        return ZBytes.of(join_slices(self._err.payload))

    @property
    def encoding(self) -> Encoding:
        """Encoding of the payload."""
        return Encoding.of(self._err.encoding)

    @property
    def timestamp_stack(self) -> TimestampStack | None:
        """Times recorded on the way there and back, if the query asked for them."""
        stack = self.wire.ts_stack
        return None if stack is None else TimestampStack.of(stack)

    @property
    def _err(self) -> Err:
        assert isinstance(self.wire.body, Err)
        return self.wire.body

    def __hash__(self) -> int:
        return hash(self.payload)

    def __str__(self) -> str:
        return f"ReplyError(payload={self.payload!r}, encoding={str(self.encoding)!r})"


@final
class Reply(Wrapped[Response]):
    """One answer to a query: a sample, or an error."""

    __slots__ = ()

    @property
    def result(self) -> Sample | ReplyError:
        """Sample or error."""
        response = self.wire
        body = response.body
        if isinstance(body, Err):
            return ReplyError.of(response)
        return Sample.of(response.key.suffix, body.body, response.qos, True, response.ts_stack)

    @property
    def ok(self) -> Sample | None:
        """Sample; None when this is an error."""
        result = self.result
        return result if isinstance(result, Sample) else None

    @property
    def err(self) -> ReplyError | None:
        """Error; None when this is a sample."""
        return ReplyError.of(self.wire) if isinstance(self.wire.body, Err) else None

    @property
    def replier_id(self) -> EntityGlobalId | None:
        """Queryable that replied, if the reply names it."""
        responder = self.wire.responder
        return None if responder is None else EntityGlobalId.of(responder)

    def __hash__(self) -> int:
        return hash((self.wire.request_id, self.wire.key.suffix))

    def __str__(self) -> str:
        return f"Reply({self.result!r}, replier_id={self.replier_id})"


def join_slices(payload: bytes | tuple[Slice, ...]) -> bytes:
    """Return a payload in one piece; join its slices."""
    return b"".join(piece.data for piece in payload) if isinstance(payload, tuple) else payload
