"""The [[decoders]] that decode a micro-batch: those of lake.toml, or of a batch that broke off.

Knows lake.toml and a small file in the state folder. Does not decode.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from zenlake.errors import ZError
from zenlake.lake.decoders import Decoders
from zenlake.lake.decoders.messages import decode_rules, encode_rules
from zenlake.lake.pipeline.progress import PerPartition
from zenlake.lake.project import FILE, Project
from zenlake.lake.tables.definitions import DECODED
from zenlake.lake.tables.record import replace_file

USED = "decoders.json"  # File in the state folder with the rules of the last micro-batch.

_log = logging.getLogger(__name__)


class DecoderRules:
    """Rules of a lake, read again when lake.toml has changed."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._seen: int | None = None
        self._rules = "[]"
        self._path: Path = project.state / USED
        self._used = self._read_used()

    def current(self) -> str:
        """Return the rules as JSON. ZError: lake.toml, or a rule in it, is not valid."""
        changed = (self._project.home / FILE).stat().st_mtime_ns
        if changed != self._seen:
            project = Project.load(self._project.home)
            Decoders(project.decoders, project.home).check()
            self._rules, self._seen = encode_rules(project.decoders), changed
        return self._rules

    def for_batch(self, positions: Mapping[str, PerPartition]) -> str:
        """Return the rules of the next micro-batch of tables that have come to `positions`.

        If only one of the two decoded tables has it, from before a crash, the other one gets it by
        the rules of that time: by others a sample could be in both tables, or in neither.
        """
        if self._used is not None and _differ(positions):
            return self._used
        rules = self.current()
        if rules != self._used:
            replace_file(self._path, rules)
            self._used = rules
        return rules

    def _read_used(self) -> str | None:
        """Return the rules of the last micro-batch; None if they are unknown or work no more."""
        try:
            used = self._path.read_text()
            Decoders(decode_rules(used), self._project.home).check()
        except FileNotFoundError:
            return None
        except (OSError, TypeError, ValueError, ZError) as error:
            _log.warning("%s: %s; the rules of lake.toml are taken", self._path, error)
            return None
        return used


def _differ(positions: Mapping[str, PerPartition]) -> bool:
    """Tell whether one of the decoded tables has samples that the other lacks.

    >>> _differ({"messages": {0: 5}, "messages_failed": {0: 9}}), _differ({"messages": {0: 5}})
    (True, False)
    """
    decoded = [positions.get(name) for name in DECODED]
    return None not in decoded and decoded[0] != decoded[1]
