"""`zenlake decode`: show what is in a stream of batches."""

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import typer

from zenlake.capture.offline_batches import CompressionChoice, FramingChoice, OfflineBatch, cut
from zenlake.capture.offline_buffer import BadBytes
from zenlake.capture.offline_input import (
    STANDARD_INPUT,
    InputSource,
    SourceError,
    head_of,
    read_source,
)
from zenlake.capture.offline_session import Direction, Entry, read_scouting
from zenlake.capture.report import MAGIC_BYTES, CaptureError, is_capture
from zenlake.cli.render.hexdump import hexdump
from zenlake.cli.render.report import DecodeReport
from zenlake.errors import REASON_TEXT

BAD_BYTES, USAGE = 1, 2


def decode(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A packet capture, or what one side of a connection sent; - is standard input.",
        ),
    ] = STANDARD_INPUT,
    as_hex: Annotated[
        bool,
        typer.Option(
            "--hex",
            help="FILE is hexadecimal text, lines that start with # are left out. On standard "
            "input such text is recognised by itself.",
        ),
    ] = False,
    scouting: Annotated[
        bool,
        typer.Option(
            "--scouting", help="FILE is one SCOUT or HELLO datagram; in hexadecimal, one a line."
        ),
    ] = False,
    framing: Annotated[
        FramingChoice,
        typer.Option(
            help="What stands before a batch: a 2-byte length (stream), a 4-byte length "
            "(low-latency) or nothing (datagram: FILE is one batch; in hexadecimal, one a line). "
            "auto is stream, and low-latency after a handshake that leads to it."
        ),
    ] = FramingChoice.AUTO,
    compression: Annotated[
        CompressionChoice,
        typer.Option(
            help="Whether batches have a compression header. auto finds out after a handshake; "
            "without one it means no."
        ),
    ] = CompressionChoice.AUTO,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="One JSON object a message, one a line. Bytes are hexadecimal text; fields have "
            "the names that the codec gives them; key is the key expression in full.",
        ),
    ] = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="Count messages and bytes, by kind and by key.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="How many keys --summary shows.")] = 20,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Write every message again and compare with what was read; with --json each "
            "message says whether it is `verified`, and what was `written` if not.",
        ),
    ] = False,
    port: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=65535,
            help="In a packet capture: a port of Zenoh besides 7447 and 7446; may be repeated. "
            "Streams whose handshake was captured are found on any port.",
        ),
    ] = None,
) -> None:
    """Show every message in a packet capture, or in a recorded Zenoh stream.

    FILE is a capture (pcap or pcapng: what tcpdump and Wireshark write), or holds the raw bytes
    that one side of a TCP connection sent, from its start (with the INIT message) or from any batch
    on. Keys that were declared are shown in full.

    Exit status: 0 all was read, 1 bad or missing bytes (or --verify found a difference), 2 wrong
    usage.

    \b
    Examples:
      zenlake decode traffic.pcapng
      tcpdump -i eth0 -w - -c 1000 port 7447 | zenlake decode
      zenlake decode sent.bin
      zenlake decode --json sent.bin | jq 'select(.message == "PUSH/PUT").key'
      echo '01 00 04' | zenlake decode
    """
    if summary and (json or verify):
        raise typer.BadParameter("--summary goes with neither --json nor --verify")
    captured = not as_hex and is_capture(head_of(file, MAGIC_BYTES))
    source = None if captured else _source(file, as_hex)
    if source is None or (not as_hex and is_capture(source.data)):
        if verify or scouting or framing is not FramingChoice.AUTO:
            raise typer.BadParameter("--verify, --scouting and --framing are not for captures")
        _show_capture(file, source, json=json, summary=summary, top=top, ports=port or [])
        return
    report = _report(json=json, summary=summary, verify=verify, top=top)
    if scouting:
        datagrams = cut(source, FramingChoice.DATAGRAM, CompressionChoice.NO)
        bad = _run(report, datagrams, read_scouting)
    else:
        bad = _run(report, cut(source, framing, compression), Direction().read)
    all_well = report.finish()
    if bad is not None:
        typer.echo(_explanation(source.name, bad), err=True)
    if bad is not None or not all_well:
        raise typer.Exit(BAD_BYTES)


def _source(file: str, as_hex: bool) -> InputSource:
    try:
        return read_source(file, is_hex=as_hex)
    except SourceError as error:
        typer.echo(f"zenlake: {error}", err=True)
        raise typer.Exit(USAGE) from None


def _show_capture(
    file: str, source: InputSource | None, *, json: bool, summary: bool, top: int, ports: list[int]
) -> None:
    """A packet capture: from its file, or from what was read of standard input."""
    from zenlake.cli.render.capture import show

    name, data = (file, None) if source is None else (source.name, source.data)
    try:
        unread = show(name, data, json=json, summary=top if summary else 0, ports=ports)
    except CaptureError as error:
        typer.echo(f"zenlake: {error}", err=True)
        raise typer.Exit(USAGE) from None
    for reason, count in unread.items():
        typer.echo(f"zenlake: {name}: not read: {count} {reason}", err=True)
    if unread:
        raise typer.Exit(BAD_BYTES)


def _report(*, json: bool, summary: bool, verify: bool, top: int) -> DecodeReport:
    """The one that was asked for; only that is imported."""
    if json:
        from zenlake.cli.render.json_lines import JsonLines

        return JsonLines(verify=verify)
    if summary:
        from zenlake.cli.render.summary import MessageSummary

        return MessageSummary(top)
    if verify:
        from zenlake.cli.render.verify import Verify

        return Verify()
    from zenlake.cli.render.tree import Tree

    return Tree()


def _run(
    report: DecodeReport,
    batches: Iterable[OfflineBatch],
    read: Callable[[OfflineBatch], Iterator[Entry]],
) -> BadBytes | None:
    try:
        for batch in batches:
            report.batch(batch)
            for entry in read(batch):
                report.message(entry)
    except BadBytes as bad:
        report.bad_bytes(bad)
        return bad
    return None


def _explanation(name: str, bad: BadBytes) -> str:
    error, buffer = bad.error, bad.buffer
    field = f"{error.message.replace('.', '/')}: {error.field}" if error.message else error.field
    where = buffer.where(error.offset)
    return (
        f"zenlake: {name}: bad bytes at offset {where}: {field}: {REASON_TEXT[error.reason]}\n"
        f"{hexdump(buffer.data, error.offset)}"
    )
