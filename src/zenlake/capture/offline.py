"""Messages of recorded bytes without packets: what one side of a connection sent, or datagrams.

reading.py reads packet captures: both sides, with gaps, as columns of the scan. Here the object
codec reads one side, so that every message and every error has its position in the input. Does not
know the other side: keys that the receiver declared stay numbers.
"""

from collections.abc import Iterator
from typing import NamedTuple

from zenlake.capture.batch_framing import (
    PLAIN,
    BatchFraming,
    first_message,
    is_repeated_close,
    possible_forms,
)
from zenlake.capture.message_fields import key_of
from zenlake.capture.offline_input import InputSource
from zenlake.capture.side_fragments import JoinedMessage, SideFragments
from zenlake.errors import DecodeError, Reason
from zenlake.keytable import KeyTable
from zenlake.transport.fragments import ByteBudget
from zenlake.wire.batch import SCOUTING, LocatedMessage, Message, TransportMessage, walk
from zenlake.wire.cursor import ByteReader
from zenlake.wire.declare import Declare, DeclareKeyExpr, UndeclareKeyExpr
from zenlake.wire.enums import Mapping
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.framing import FLAG_COMPRESSED, MAX_BATCH_BYTES, Framing, split, uncompress
from zenlake.wire.init import Init
from zenlake.wire.network import NETWORK
from zenlake.wire.open import Open
from zenlake.wire.wireexpr import WireExpr

MAX_MESSAGE_BYTES = 1 << 30  # Zenoh's default transport.link.rx.max_message_size.


class Buffer(NamedTuple):
    """Bytes [start, end) of `data`: the input itself, or made from a part of it.

    Positions of messages and errors are positions in a buffer.
    """

    data: bytes
    start: int
    end: int
    made: str = ""
    "How it was made: `uncompressed` or `joined`; empty for the input itself."
    origin: tuple[int, int] = (0, 0)
    "Range of the input that it was made from."

    def reader(self) -> ByteReader:
        """Return a reader that accepts payloads in shared memory, since it only displays them."""
        return ByteReader(self.data, self.start, self.end, shm=True)

    def input_span(self, start: int, end: int) -> tuple[int, int]:
        """Return the range of the input that holds the bytes from `start` to `end`."""
        return self.origin if self.made else (start, end)

    def where(self, pos: int) -> str:
        """Return a position as text."""
        return f"{self.origin[0]} {self.made} +{pos}" if self.made else str(pos)


class BadBytes(NamedTuple):
    """A DecodeError, with the buffer that its offset refers to."""

    error: DecodeError
    buffer: Buffer


class OfflineBatch(NamedTuple):
    """A batch and its place in the input."""

    number: int
    "Ordinal of the batch, from 1."
    offset: int
    "Position of the length prefix in the input."
    start: int
    end: int
    "The batch as it was sent is [start, end) of the input."
    buffer: Buffer
    "Bytes of the batch, uncompressed."
    low_latency: bool
    "Network messages stand in it without a FRAME."


class Entry(NamedTuple):
    """A message and its place in the input."""

    batch: OfflineBatch
    buffer: Buffer
    start: int
    end: int
    "The message is [start, end) of `buffer`."
    message: Message
    frame: Frame | None = None
    "The FRAME around a network message."
    key: str | None = None
    "The key expression, in full if the sender declared its id."
    fragments: int = 0
    "How many FRAGMENTs it was joined from; 0 for a message that was not cut."


class OfflineReading:
    """An iterable of batches, each followed by its messages; ends at the first bad bytes.

    `framing` and `compression` say what the batches have after the handshake, or from the start
    without one; None: what the handshake and the bytes say.
    """

    def __init__(
        self,
        source: InputSource,
        framing: Framing | None = None,
        compression: bool | None = None,
        *,
        scouting: bool = False,
    ) -> None:
        self.bad: BadBytes | None = None
        "Bytes at which the reading ended; None if it read all."
        self._data = source.data
        self._datagram_ends = source.datagram_ends
        self._framing = framing
        self._compression = compression
        self._scouting = scouting
        self._whole = self._buffer = Buffer(source.data, 0, len(source.data))
        self._keys = KeyTable()
        memory = ByteBudget(MAX_MESSAGE_BYTES)
        self._fragments = SideFragments(memory, lambda _: None, MAX_MESSAGE_BYTES, unbroken=False)

    def __iter__(self) -> Iterator[OfflineBatch | Entry]:
        read = self._read_datagram if self._scouting else self._read_batch
        try:
            for batch in self._batches():
                yield batch
                self._buffer = batch.buffer
                yield from read(batch)
                self._buffer = self._whole
        except DecodeError as error:
            self.bad = BadBytes(error, self._buffer)

    # ---- batches

    def _batches(self) -> Iterator[OfflineBatch]:
        """Yield the batches; those of a handshake, INIT and OPEN, are plain."""
        datagrams = self._framing is Framing.DATAGRAM
        handshake = BatchFraming(Framing.DATAGRAM if datagrams else Framing.STREAM)
        first = self._first_message(0, handshake)
        init = first if isinstance(first, Init) else None
        form = self._apply_choices(handshake) if init is None else handshake
        pos, number = 0, 1
        while pos < len(self._data):
            second = self._first_message(pos, handshake) if init and number == 2 else None
            batch = self._batch_at(pos, form, number)
            yield batch
            pos, number = batch.end, number + 1
            if init and isinstance(second, Open):
                form = self._apply_choices(self._guess_form(pos, handshake, init))

    def _guess_form(self, pos: int, handshake: BatchFraming, init: Init) -> BatchFraming:
        """Return the first form that `init` allows in which the next batch with bytes decodes."""
        is_stream = handshake.framing is Framing.STREAM
        for form in possible_forms([init], is_stream=is_stream):
            framing = form.framing if is_stream else handshake.framing
            try:
                start, end = self._span(pos, framing)
                while start == end:
                    start, end = self._span(end, framing)
            except DecodeError:
                continue
            if form.reads(self._data[start:end]):
                return form._replace(framing=framing)
        return handshake

    def _apply_choices(self, form: BatchFraming) -> BatchFraming:
        framing = form.framing if self._framing is None else self._framing
        compression = form.compression if self._compression is None else self._compression
        return BatchFraming(framing, compression, framing is Framing.LOW_LATENCY)

    def _first_message(self, pos: int, form: BatchFraming) -> TransportMessage | None:
        """Return the first message of the plain batch at `pos`."""
        try:
            start, end = self._span(pos, form.framing)
        except DecodeError:
            return None
        return first_message(self._data[start:end])

    def _batch_at(self, pos: int, form: BatchFraming, number: int) -> OfflineBatch:
        """Return the batch whose prefix starts at `pos`."""
        data = self._data
        if form.framing is Framing.LOW_LATENCY and is_repeated_close(data[pos : pos + 5]):
            form = PLAIN
        start, end = self._span(pos, form.framing)
        buffer = Buffer(data, start, end)
        if form.compression and start < end:
            buffer = Buffer(data, start + 1, end)
            if data[start] & FLAG_COMPRESSED:
                plain = uncompress(data[start:end], start)
                buffer = Buffer(plain, 0, len(plain), "uncompressed", (start, end))
        return OfflineBatch(number, pos, start, end, buffer, form.low_latency)

    def _span(self, pos: int, framing: Framing) -> tuple[int, int]:
        """Return start and end of the batch whose prefix starts at `pos`."""
        if pos in self._datagram_ends and framing is Framing.DATAGRAM:
            return pos, self._datagram_ends[pos]
        limit = MAX_MESSAGE_BYTES if framing is Framing.LOW_LATENCY else MAX_BATCH_BYTES
        for span in split(self._data, framing, pos, limit=limit):
            return span
        raise DecodeError(Reason.BATCH_CUT_SHORT, "batch", pos)

    # ---- messages

    def _read_datagram(self, batch: OfflineBatch) -> Iterator[Entry]:
        """Yield the only message of a scouting datagram."""
        r = batch.buffer.reader()
        message = SCOUTING.read(r)
        yield Entry(batch, batch.buffer, batch.buffer.start, r.pos, message)
        r.finish("datagram")

    def _read_batch(self, batch: OfflineBatch) -> Iterator[Entry]:
        """Yield every message of `batch`; a joined message follows its last FRAGMENT."""
        for located in walk(batch.buffer.reader(), low_latency=batch.low_latency):
            message = located.message
            yield self._entry(batch, located)
            if isinstance(message, Init):
                self._fragments.unbroken = True
            elif isinstance(message, Fragment):
                joined = self._fragments.add(message)
                if joined is not None:
                    yield self._joined(batch, located, joined)

    def _entry(self, batch: OfflineBatch, located: LocatedMessage, fragments: int = 0) -> Entry:
        start, end, message, frame = located
        self._learn(message)
        key = key_of(message)
        text = None if key is None else self._keys.text(key) or str(key)
        return Entry(batch, self._buffer, start, end, message, frame, text, fragments)

    def _learn(self, message: Message) -> None:
        """Note the key that an id is declared for."""
        if not isinstance(message, Declare):
            return
        body = message.body
        if isinstance(body, DeclareKeyExpr):
            # A declaration has scope 0 and the full text. Any other scope stays a number: texts
            # that build on each other could grow without bound.
            text = str(WireExpr(body.key.scope, body.key.suffix, Mapping.SENDER))
            self._keys.declare(Mapping.SENDER, body.id, text)
        elif isinstance(body, UndeclareKeyExpr):
            self._keys.undeclare(Mapping.SENDER, body.id)

    def _joined(self, batch: OfflineBatch, last: LocatedMessage, joined: JoinedMessage) -> Entry:
        size = len(joined.data)
        origin = batch.buffer.input_span(last.start, last.end)
        self._buffer = Buffer(joined.data, 0, size, "joined", origin)
        r = self._buffer.reader()
        try:
            message = NETWORK.read(r)
            r.finish("joined message")
        except DecodeError as error:
            raise error.within("FRAGMENT") from None
        entry = self._entry(batch, LocatedMessage(0, size, message), joined.pieces)
        self._buffer = batch.buffer
        return entry
