"""`zenlake decode`: show what is in a stream of batches."""

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import typer

from zenlake.cli.buffers import BadBytes
from zenlake.cli.direction import Direction, Entry, read_scouting
from zenlake.cli.hexdump import hexdump
from zenlake.cli.report import Report
from zenlake.cli.source import STANDARD_INPUT, SourceError, read_source
from zenlake.cli.streams import Batch, CompressionChoice, FramingChoice, cut
from zenlake.errors import REASON_TEXT

BAD_BYTES, USAGE = 1, 2


def decode(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="What one side of a connection sent; - is standard input."
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
        typer.Option("--verify", help="Write every message again and compare with what was read."),
    ] = False,
) -> None:
    """Show every message in a recorded Zenoh stream.

    FILE holds the raw bytes that one side of a TCP connection sent, from its start (with the INIT
    message) or from any batch on. Keys that this side declared are shown in full.

    Exit status: 0 all was read, 1 bad bytes (or --verify found a difference), 2 wrong usage.

    \b
    Examples:
      zenlake decode sent.bin
      zenlake decode --json sent.bin | jq 'select(.message == "PUSH/PUT").key'
      echo '01 00 04' | zenlake decode
    """
    if json + summary + verify > 1:
        raise typer.BadParameter("only one of --json, --summary and --verify can be given")
    try:
        source = read_source(file, is_hex=as_hex)
    except SourceError as error:
        typer.echo(f"zenlake: {error}", err=True)
        raise typer.Exit(USAGE) from None
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


def _report(*, json: bool, summary: bool, verify: bool, top: int) -> Report:
    """The one that was asked for; only that is imported."""
    if json:
        from zenlake.cli.jsonl import JsonLines

        return JsonLines()
    if summary:
        from zenlake.cli.summary import Summary

        return Summary(top)
    if verify:
        from zenlake.cli.verify import Verify

        return Verify()
    from zenlake.cli.tree import Tree

    return Tree()


def _run(
    report: Report, batches: Iterable[Batch], read: Callable[[Batch], Iterator[Entry]]
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
