"""`zenlake decode`: show the messages of a captured or recorded stream.

Knows options and exit statuses. Does not decode: capture/ does.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from zenlake.capture.offline import OfflineReading
from zenlake.capture.offline_input import STANDARD_INPUT, InputSource, head_of, read_source
from zenlake.capture.report import MAGIC_BYTES, CaptureError, is_capture
from zenlake.cli import session_options
from zenlake.cli.failure import FAILURE, USAGE
from zenlake.wire.framing import Framing


class FramingChoice(StrEnum):
    """Framing that the user names."""

    AUTO = "auto"
    STREAM = "stream"
    LOW_LATENCY = "low-latency"
    DATAGRAM = "datagram"


class CompressionChoice(StrEnum):
    """Compression that the user names."""

    AUTO = "auto"
    YES = "yes"
    NO = "no"


@dataclass(frozen=True)
class StreamOptions:
    """Options that say what FILE is."""

    as_hex: Annotated[
        bool,
        typer.Option(
            "--hex",
            help="FILE is hexadecimal text; lines that start with # are comments. On standard "
            "input such text is detected.",
        ),
    ] = False
    scouting: Annotated[
        bool,
        typer.Option(
            "--scouting",
            help="FILE is one SCOUT or HELLO datagram; in hexadecimal, one per line.",
        ),
    ] = False
    framing: Annotated[
        FramingChoice,
        typer.Option(
            help="Bytes before a batch: a 2-byte length (stream), a 4-byte length (low-latency) or "
            "none (datagram: FILE is one batch; in hexadecimal, one per line). auto is stream, and "
            "low-latency after a handshake that agrees on it."
        ),
    ] = FramingChoice.AUTO
    compression: Annotated[
        CompressionChoice,
        typer.Option(
            help="Whether batches have a compression header. auto reads it from the handshake; "
            "without a handshake it means no."
        ),
    ] = CompressionChoice.AUTO
    port: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=65535,
            help="In a packet capture: a port of Zenoh besides 7447 and 7446; may be repeated. "
            "Streams whose handshake was captured are found on any port.",
        ),
    ] = None


@dataclass(frozen=True)
class ReportOptions:
    """Options that say how messages are printed."""

    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object per message, one per line. Bytes are hexadecimal text; "
            "fields have the codec's names; key is the full key expression.",
        ),
    ] = False
    summary: Annotated[
        bool, typer.Option("--summary", help="Count messages and bytes, by kind and by key.")
    ] = False
    top: Annotated[int, typer.Option(min=1, help="Number of keys that --summary shows.")] = 20
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Encode every message again and compare it with the bytes read; with --json each "
            "message has `verified`, and `written` if the bytes differ.",
        ),
    ] = False


@session_options.expand_options
def decode(
    report: ReportOptions,
    stream: StreamOptions,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A packet capture, or the bytes that one side of a connection sent; - is standard "
            "input.",
        ),
    ] = STANDARD_INPUT,
) -> None:
    """Show the messages of a packet capture or a byte stream.

    FILE is a capture (pcap or pcapng, as tcpdump and Wireshark write it), or holds the raw bytes
    that one side of a TCP connection sent, from its start (with the INIT message) or from any
    batch on. Declared keys are shown in full.

    Exit status: 0 all bytes were decoded, 1 bytes are bad or missing (or --verify found a
    difference), 2 wrong usage.

    \b
    Examples:
      zenlake decode traffic.pcapng
      tcpdump -i eth0 -w - -c 1000 port 7447 | zenlake decode
      zenlake decode sent.bin
      zenlake decode --json sent.bin | jq 'select(.message == "PUSH/PUT").key'
      echo '01 00 04' | zenlake decode
    """
    if report.summary and (report.json or report.verify):
        raise typer.BadParameter("--summary goes with neither --json nor --verify")
    captured = not stream.as_hex and is_capture(head_of(file, MAGIC_BYTES))
    try:
        source = None if captured else read_source(file, is_hex=stream.as_hex)
        if source is None or (not stream.as_hex and is_capture(source.data)):
            if report.verify or stream.scouting or stream.framing is not FramingChoice.AUTO:
                raise typer.BadParameter("--verify, --scouting and --framing are not for captures")
            _print_capture(file, source, report, stream.port or [])
        else:
            _print_stream(source, report, stream)
    except CaptureError as error:
        typer.echo(f"zenlake: {error}", err=True)
        raise typer.Exit(USAGE) from None


def _print_stream(source: InputSource, report: ReportOptions, stream: StreamOptions) -> None:
    """Print the messages of one side of a connection, or of datagrams."""
    from zenlake.cli.render.messages import explain, print_json, print_verification

    framing = compression = None
    if stream.scouting:
        framing = Framing.DATAGRAM
    elif stream.framing is not FramingChoice.AUTO:
        framing = Framing[stream.framing.name]
    if stream.scouting or stream.compression is not CompressionChoice.AUTO:
        compression = not stream.scouting and stream.compression is CompressionChoice.YES
    reading = OfflineReading(source, framing, compression, scouting=stream.scouting)
    all_well = True
    if report.json:
        all_well = print_json(reading, verify=report.verify)
    elif report.verify:
        all_well = print_verification(reading)
    else:
        from zenlake.cli.render.tree import print_summary, print_tree

        if report.summary:
            print_summary(reading, report.top)
        else:
            print_tree(reading)
    if reading.bad is not None:
        typer.echo(explain(source.name, reading.bad), err=True)
    if reading.bad is not None or not all_well:
        raise typer.Exit(FAILURE)


def _print_capture(
    file: str, source: InputSource | None, report: ReportOptions, ports: list[int]
) -> None:
    """Print a packet capture, from its file or from the bytes of standard input."""
    from zenlake.cli.render.capture import print_capture

    name, data = (file, None) if source is None else (source.name, source.data)
    summary = report.top if report.summary else 0
    unread = print_capture(name, data, json=report.json, summary=summary, ports=ports)
    for reason, count in unread.items():
        typer.echo(f"zenlake: {name}: not read: {count} {reason}", err=True)
    if unread:
        raise typer.Exit(FAILURE)
