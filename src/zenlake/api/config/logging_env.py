"""Logging by environment variables: the levels of zenlake's loggers, on stderr.

Knows the syntax of ZENLAKE_LOG and RUST_LOG. Does not know what is logged.
"""

import logging
import os
import sys

log = logging.getLogger("zenlake")

VARIABLES = ("ZENLAKE_LOG", "RUST_LOG")  # Environment variables; the first one that is set counts.
RUST_NAME = "zenoh"  # Name of the Rust implementation and prefix of its crates in RUST_LOG.
FORMAT = "%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"
TRACE = 5
OFF = logging.CRITICAL + 10
IGNORED_KEYS = "zenlake.config.ignored"  # Logger that names ignored keys of a configuration.
LEVELS = {
    "off": OFF,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": TRACE,
}


def init_log_from_env_or(level: str) -> None:
    """Configure logging by ZENLAKE_LOG or RUST_LOG, or by `level` when neither is set.

    Each holds a level (off, error, warn, info, debug, trace), or levels by logger:
    `warn,zenlake.link=debug`. A later call replaces an earlier one. If the program configured
    `logging` itself, only levels are set, and records go to the program's handlers. Keys of a
    configuration that have no effect are named at the level `error` too.
    """
    _configure(_from_environment() or level)


def try_init_log_from_env() -> None:
    """Configure logging by ZENLAKE_LOG or RUST_LOG; change nothing when neither is set."""
    directives = _from_environment()
    if directives:
        _configure(directives)


def log_levels(directives: str) -> dict[str, int]:
    """Return the level of each zenlake logger; ignore other loggers and directives that cannot be
    read.

    >>> log_levels("warn,zenlake.link=debug")
    {'zenlake': 30, 'zenlake.link': 10}
    >>> log_levels("zenoh=info,hyper=trace")
    {'zenlake': 20}
    """
    levels = {log.name: logging.ERROR}
    for directive in filter(None, map(str.strip, directives.split(","))):
        if directive.lower() in LEVELS:
            target, level = log.name, directive
        else:
            target, _, level = directive.partition("=")
        name = _logger_name(target)
        number = LEVELS.get((level or "trace").strip().lower())
        if name and number is not None:
            levels[name] = number
    return levels


def _logger_name(target: str) -> str:
    """Return the logger that a target means: `zenlake.link` itself, "zenlake" for
    `zenoh_link::tcp`, "" for others.
    """
    name = target.strip().replace("::", ".")
    first = name.partition(".")[0]
    if first == log.name:
        return name
    return log.name if first.partition("_")[0] == RUST_NAME else ""


def _from_environment() -> str:
    return next(filter(None, map(os.environ.get, VARIABLES)), "")


class _Stderr(logging.Handler):
    """Handler that writes to stderr unless the program has configured handlers of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            print(self.format(record), file=sys.stderr)  # noqa: T201


_stderr = _Stderr()
_stderr.setFormatter(logging.Formatter(FORMAT))
_configured: set[str] = set()


def _configure(directives: str) -> None:
    logging.addLevelName(TRACE, "TRACE")
    levels = log_levels(directives)
    if levels[log.name] < OFF:
        levels.setdefault(IGNORED_KEYS, logging.WARNING)
    for name in _configured - levels.keys():
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    _configured.clear()
    _configured.update(levels)
    log.addHandler(_stderr)  # addHandler ignores a handler that is there already.
