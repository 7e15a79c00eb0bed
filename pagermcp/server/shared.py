"""What the processes of one relay share: the lock on the spool, and the port."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from typing import Any

from waitress.adjustments import Adjustments

from pagermcp import files


@contextlib.contextmanager
def held(path: str, mode: int) -> Iterator[bool]:
    """Lock a file, made with that mode, for this process and all it forks meanwhile: as long as one of them lives.

    False when another has it. Not a FileLock, whose descriptor does not outlive a fork. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | files.NOT_FOLLOWED, mode)
    got = True
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            got = False
        yield got
    finally:
        os.close(descriptor)  # no LOCK_UN, which would unlock it for all


class Port:
    """The addresses of a host and port, kept for workers. Raises OSError, and ValueError when there is no such host."""

    def __init__(self, listen: str) -> None:
        self._kept: list[socket.socket] = []
        self._at: list[tuple[int, tuple[Any, ...]]] = []
        self.number = 0
        for family, _, _, (host, port, *scope) in Adjustments(listen=listen).listen:
            with _bound(family, (host, port or self.number, *scope), shared=False) as alone:  # fails if others listen
                self.number = alone.getsockname()[1]
            self._at.append((family, (host, self.number, *scope)))
            self._kept.append(_bound(*self._at[-1]))

    def sockets(self) -> list[socket.socket]:
        """New sockets at these addresses, that do not listen yet: for one worker. Raises OSError."""
        return [_bound(*at) for at in self._at]


class HandedOver(Port):
    """Sockets that listen already, from which all workers accept: whoever is free takes the next connection.

    Each connection wakes all who are idle, and one gets it. EPOLLEXCLUSIVE would wake one alone, who may be about to
    stop, or may hang, and then it would wait there beside idle workers. Of 300 connections, one after another, three
    workers took 121, 108 and 71; of 600 at once 333, 157 and 110."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._kept = sockets
        self.number = sockets[0].getsockname()[1]

    def sockets(self) -> list[socket.socket]:
        return self._kept  # a worker has its own descriptors for them, by its fork


def _bound(family: int, address: tuple[Any, ...], shared: bool = True) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
