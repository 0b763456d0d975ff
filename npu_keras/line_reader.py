# SPDX-License-Identifier: Apache-2.0
"""Lines of a file that nobody vouches for, without ever holding a long one."""

from collections.abc import Iterator
from pathlib import Path

LONGEST_LINE = 1 << 16
"""Bytes; an event takes some hundred."""


def bounded_lines(path: str | Path, limit: int = LONGEST_LINE) -> Iterator[str | None]:
    """Yields the lines of a text file.

    Args:
        path: the file, UTF-8; bytes that are not become replacement characters.
        limit: the longest line, in bytes with its line feed.

    Yields:
        A line without its end, or None in the place of one that is longer than `limit`.

    Raises:
        OSError: if the file cannot be read.
    """
    with open(path, "rb") as file:
        while chunk := file.readline(limit):
            whole = chunk.endswith(b"\n") or len(chunk) < limit
            yield chunk.rstrip(b"\r\n").decode("utf-8", "replace") if whole else None
            while not whole:
                chunk = file.readline(limit)
                whole = not chunk or chunk.endswith(b"\n")
