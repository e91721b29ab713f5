"""Reply and ReplyError: what a query is answered with.

Knows the API's face of RESPONSE. Does not know which query it belongs to, or what was left out.
"""

from zenlake.api.values.encoding import Encoding
from zenlake.api.values.ids import EntityGlobalId
from zenlake.api.values.instrumentation import TimestampStack
from zenlake.api.values.sample import Sample
from zenlake.api.values.wrapped import Wrapped
from zenlake.api.values.zbytes import ZBytes
from zenlake.wire.err import Err
from zenlake.wire.put import Slice
from zenlake.wire.response import Response


class ReplyError(Wrapped[Response]):
    """Why a query was not answered; made by `Query.reply_err`, or by a timeout."""

    __slots__ = ()

    @property
    def payload(self) -> ZBytes:
        """What went wrong, in the replier's words."""
        return ZBytes.of(joined(self._err.payload))

    @property
    def encoding(self) -> Encoding:
        """What the payload is."""
        return Encoding.of(self._err.encoding)

    @property
    def timestamp_stack(self) -> TimestampStack | None:
        """The times recorded on the way there and back, if the query asked for them."""
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


class Reply(Wrapped[Response]):
    """One answer to a query: a sample, or an error."""

    __slots__ = ()

    @property
    def result(self) -> Sample | ReplyError:
        """The sample or the error."""
        response = self.wire
        body = response.body
        if isinstance(body, Err):
            return ReplyError.of(response)
        return Sample.of(response.key.suffix, body.body, response.qos, True, response.ts_stack)

    @property
    def ok(self) -> Sample | None:
        """The sample; None when this is an error."""
        result = self.result
        return result if isinstance(result, Sample) else None

    @property
    def err(self) -> ReplyError | None:
        """The error; None when this is a sample."""
        return ReplyError.of(self.wire) if isinstance(self.wire.body, Err) else None

    @property
    def replier_id(self) -> EntityGlobalId | None:
        """The queryable that answered, if it said so."""
        responder = self.wire.responder
        return None if responder is None else EntityGlobalId.of(responder)

    def __hash__(self) -> int:
        return hash((self.wire.request_id, self.wire.key.suffix))

    def __str__(self) -> str:
        return f"Reply({self.result!r}, replier_id={self.replier_id})"


def joined(payload: bytes | tuple[Slice, ...]) -> bytes:
    """A payload in one piece: one that came in slices is put together."""
    return b"".join(piece.data for piece in payload) if isinstance(payload, tuple) else payload
