"""Levels of this process's loggers, under the names that Kafka Connect has for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

ROOT: Final = "root"
PROGRAM: Final = "sidecar"
"""Above all loggers of this program."""
TRACE: Final = 5
LEVELS: Final = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": TRACE,
}
"""From the highest to the lowest."""


class Level(NamedTuple):
    """The effective level of a logger, its own or inherited."""

    level: str
    last_modified: int | None


class Levels:
    """Reads and sets levels; any thread may.

    A logger without its own level has that of the nearest ancestor. A level that is set here replaces the levels set
    here earlier for its descendants, but not those that the process started with: the HTTP server logs errors only,
    and the Kafka library has its own setting.

    Args:
        now_ms: Wall time.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        logging.getLogger(PROGRAM)  # it is there to be listed and set, before anything has been logged by it
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._set: set[str] = set()
        self._changed_ms: dict[str, int] = {}

    def all(self) -> dict[str, Level]:
        """Return the levels of all loggers, by name."""
        return {name: self._level(name, logger) for name, logger in sorted(_loggers().items())}

    def one(self, name: str) -> Level | None:
        """Return the level of a logger, None when there is no such logger."""
        logger = _loggers().get(name)
        return None if logger is None else self._level(name, logger)

    def set(self, name: str, level: str) -> list[str]:
        """Set the level of a logger, created if necessary, and return the names of all loggers that get it.

        Args:
            name: The name of the logger.
            level: One of LEVELS.
        """
        with self._lock:
            chosen = logging.getLogger(None if name == ROOT else name)
            below = {each for each in self._set if name == ROOT or each.startswith(f"{name}.")}
            for each in below - {name}:
                logging.getLogger(None if each == ROOT else each).setLevel(logging.NOTSET)
            self._set = (self._set - below) | {name}
            chosen.setLevel(LEVELS[level])
            affected = sorted(each for each, logger in _loggers().items() if _inherits(logger, chosen))
            self._changed_ms.update(dict.fromkeys(affected, self._now_ms()))
        return affected

    def _level(self, name: str, logger: logging.Logger) -> Level:
        number = logger.getEffectiveLevel()
        level = next((each for each, least in LEVELS.items() if number >= least), "TRACE")
        return Level(level, self._changed_ms.get(name))


def _loggers() -> dict[str, logging.Logger]:
    known = logging.root.manager.loggerDict.copy()  # other threads add to it
    return {ROOT: logging.root} | {name: each for name, each in known.items() if isinstance(each, logging.Logger)}


def _inherits(logger: logging.Logger, chosen: logging.Logger) -> bool:
    while logger is not chosen and logger.level == logging.NOTSET and logger.parent is not None:
        logger = logger.parent
    return logger is chosen
