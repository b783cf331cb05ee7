"""Calls a command on a new connection. Applications take a real client, such as redis-py."""

import socket
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit


class ReplyError(Exception):
    """The server answered with an error."""


def call(url: str, *words: object) -> Any:
    """The reply: an integer, text, None, or a list of these. The address is redis://:password@host:6379 or unix:///path."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(unquote(parts.path))
        except BaseException:
            connection.close()
            raise
    else:
        connection = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379))
    calls = [words]
    if parts.password:
        calls.insert(0, ("AUTH", unquote(parts.username or "default"), unquote(parts.password)))
    with connection, connection.makefile("rb") as stream:
        for command in calls:
            encoded = [str(word).encode(errors="surrogateescape") for word in command]
            connection.sendall(b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded))
            if isinstance(reply := read(stream), ReplyError):
                raise reply
        return reply


def read(stream: BinaryIO) -> Any:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("the server has closed the connection")
    kind, rest = line[:1], line[1:-2].decode(errors="backslashreplace")
    if kind in b"+-":
        return rest if kind == b"+" else ReplyError(rest)
    if kind == b":" or rest == "-1":
        return int(rest) if kind == b":" else None
    if kind == b"$":
        return stream.read(int(rest) + 2)[:-2].decode(errors="backslashreplace")
    return [read(stream) for _ in range(int(rest))]
