"""Listening sockets that systemd has opened before the relay: it keeps them, and who connects while the relay restarts
waits there for it, instead of being refused.

As in sd_listen_fds(3): there are LISTEN_FDS of them, from descriptor 3 on, for the process LISTEN_PID.
"""

import os
import socket
from collections.abc import Mapping

_FIRST = 3


class NotListening(Exception):
    """What was handed over is nothing to listen on. The message is one line."""


def handed_over(environment: Mapping[str, str]) -> list[socket.socket]:
    """The sockets for this process; none, when it was started otherwise. Raises NotListening."""
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = environment.get("LISTEN_FDS", "")
    if not (count.isascii() and count.isdecimal()):
        raise NotListening(f"LISTEN_FDS={count!r}: must be a whole number")
    return [_socket(descriptor) for descriptor in range(_FIRST, _FIRST + int(count))]


def _socket(descriptor: int) -> socket.socket:
    try:
        given = socket.socket(fileno=descriptor)
        listens = given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise NotListening(f"descriptor {descriptor}, of LISTEN_FDS, is no socket: {error.strerror}") from error
    if not listens or given.family not in (socket.AF_INET, socket.AF_INET6):
        raise NotListening(f"descriptor {descriptor}, of LISTEN_FDS, does not listen for TCP: ListenStream=HOST:PORT")
    return given
