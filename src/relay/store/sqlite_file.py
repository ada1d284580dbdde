"""The database file: who may use it, how it is opened, and how an older one becomes a newer one."""

from __future__ import annotations

import fcntl
import sqlite3
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import IO

from relay.errors import StartupError

APPLICATION_ID = 0x52454C59  # "RELY": a database of somebody else is not touched
BUSY_SECONDS = 5.0


class FileLock:
    """Keeps a second process away. The kernel lets go of it however the process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        self._file: IO[bytes] | None = None

    def acquire(self) -> None:
        """Raises StartupError if another process has it."""
        try:
            self._file = self._path.open("wb")
        except OSError as exc:
            raise StartupError(f"{self._path}: {exc.strerror}. The folder must exist and be writable.") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise StartupError(
                f"Another relay uses {self._path.with_suffix('')}. One process owns a SQLite file: stop the other one, "
                "choose another file, or use Redis for several."
            ) from None

    def release(self) -> None:
        """Let the next one have it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def connect(path: Path) -> sqlite3.Connection:
    """A connection that writes, and whose every commit is on the disk when it returns."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    # A group is some pages long, and each page of the WAL is two system calls: twice the size, half the calls.
    # (A file that exists keeps the size it has.)
    connection.execute("PRAGMA page_size = 8192")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    # Room for all pages that one transaction changes, and fewer rounds in which they go from the WAL to their places.
    connection.execute("PRAGMA cache_size = -16384")
    connection.execute("PRAGMA wal_autocheckpoint = 2000")
    return connection


def prepare(path: Path) -> None:
    """Create the file or bring it up to date. Raises StartupError if that cannot be done."""
    try:
        connection = connect(path)
    except sqlite3.Error as exc:
        raise StartupError(f"{path} cannot be opened: {exc}. It must be a relay database, or not exist.") from None
    try:
        migrate(connection, path)
    except sqlite3.Error as exc:
        raise StartupError(f"{path} cannot be brought up to date: {exc}.") from None
    finally:
        connection.close()


def migrate(connection: sqlite3.Connection, path: Path, up_to: int | None = None) -> None:
    """Run the numbered scripts that this database has not seen yet, each in a transaction of its own."""
    [[version]] = connection.execute("PRAGMA user_version")
    [[application]] = connection.execute("PRAGMA application_id")
    [[tables]] = connection.execute("SELECT count(*) FROM sqlite_master")
    scripts = migrations()
    if application != APPLICATION_ID and tables:
        raise StartupError(f"{path} is a database of another program. Choose another file.")
    if version > len(scripts):
        raise StartupError(f"{path} was made by a newer relay. Upgrade this one, or choose another file.")
    for number, script in list(enumerate(scripts, 1))[version:up_to]:
        connection.executescript(
            f"BEGIN IMMEDIATE; {script}; PRAGMA application_id = {APPLICATION_ID};"
            f" PRAGMA user_version = {number}; COMMIT;"
        )


def migrations() -> list[str]:
    """The scripts, in their order."""
    folder = resources.files("relay.store") / "sql"
    return [file.read_text() for file in sorted(folder.iterdir(), key=lambda file: file.name)]
