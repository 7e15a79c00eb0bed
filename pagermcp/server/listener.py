"""A listening socket: takes connections up to a limit, and tells those beyond it to come again."""

import contextlib
import errno
import http
import logging
import math
import time
from collections.abc import Callable
from typing import Any

from waitress.server import TcpWSGIServer

from pagermcp.limits import Headcount
from pagermcp.measures import MEASURES
from pagermcp.origins import Origins
from pagermcp.server.channel import Channel
from pagermcp.server.loop import Loop

_AT_ONCE = 64
_PAUSE_SECONDS = 1.0
_SAY_SECONDS = 60.0
_TOLD_OF_AN_ADDRESS = 16

log = logging.getLogger("pagermcp")


class Limit:
    """How many connections there may be, counted over all listeners by their common `sockets`.

    A few more are told that they are too many; beyond those the rest waits in the system's queue for a moment."""

    def __init__(self, connections: int, sockets: dict[int, Any], origins: Origins, of_one: int) -> None:
        """of_one: how many connections one of `origins` may have; 0 for no limit."""
        self._connections, self._sockets = connections, sockets
        self.origins, self.guests = origins, Headcount(of_one)
        self._refusals = max(4, connections // 16)
        self._own = 0
        self._said_at = -math.inf

    def begin(self) -> None:
        """What is there now, listeners and triggers, does not count."""
        self._own = len(self._sockets)

    def is_reached(self) -> bool:
        reached = len(self._sockets) - self._own >= self._connections
        if reached and time.monotonic() - self._said_at > _SAY_SECONDS:
            log.info("there are %d connections, which is as many as may be; more get 503", self._connections)
            self._said_at = time.monotonic()
        return reached

    def is_exceeded(self) -> bool:
        return len(self._sockets) - self._own >= self._connections + self._refusals


class Listener(TcpWSGIServer):
    """Waitress's server, without its own loop."""

    channel_class = Channel
    loop: Loop
    limit: Limit
    draining = False
    _paused_until = 0.0

    def readable(self) -> bool:
        super().readable()  # which closes connections that have been idle for long
        return bool(self.accepting) and not self.limit.is_exceeded() and time.monotonic() >= self._paused_until

    def handle_accept(self) -> None:
        for _ in range(_AT_ONCE):
            if self.limit.is_exceeded():
                return
            try:
                accepted = self.accept()
                if accepted is None:
                    return
                connection, address = accepted
                self.set_socket_options(connection)
            except OSError as error:  # out of descriptors; or the client has gone, and then its options can't be set
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    log.warning("a connection could not be taken: %s", error.strerror)
                    self._paused_until = time.monotonic() + _PAUSE_SECONDS
                    return
                continue
            who = self.limit.origins.of_connection(address[0])
            surplus = self.limit.guests.enter(who)
            if surplus > _TOLD_OF_AN_ADDRESS:  # so many are being told already
                self.limit.guests.leave(who)
                connection.close()
                MEASURES.count("too_many_connections")
                continue
            too_many = surplus or self.limit.is_reached()
            channel = Channel(self, connection, self.fix_addr(address), self.adj, map=self._map)
            if who:
                channel.guest = who
            if too_many:
                what = f"there are too many connections{' from your address' if surplus else ''}"
                hint = "try again; or let the operator allow more"
                channel.refuse(http.HTTPStatus.SERVICE_UNAVAILABLE, "too_many_connections", what, hint)
            self.loop.changed(channel)

    def maintenance(self, now: float) -> None:
        for channel in list(self.active_channels.values()):
            idle = not channel.requests or channel.total_outbufs_len
            if idle and channel.last_activity < now - self.adj.channel_timeout:
                channel.will_close = True
                self.loop.changed(channel)
            elif channel.is_slow():
                what, hint = "the request has come too slowly", "send all of it at once"
                channel.refuse(http.HTTPStatus.REQUEST_TIMEOUT, "too_slow", what, hint)
                self.loop.changed(channel)

    def pull_trigger(self) -> None:
        """Waitress means: look at all connections again. Ours say themselves when that is needed."""


def listen(
    application: Callable[..., Any],
    adjustments: Any,
    pool: Any,
    sockets: dict[int, Any],
    limit: Limit,
    turn: contextlib.AbstractContextManager[None],
) -> list[Listener]:
    """Listen on every socket of `adjustments.sockets`, or else at every address of its `listen`. Raises OSError."""
    ready = [(one, (one.family, one.type, one.proto, one.getsockname())) for one in adjustments.sockets]
    listeners = [
        Listener(
            application, sockets, _sock=bound, dispatcher=pool, adj=adjustments, sockinfo=at, bind_socket=bound is None
        )
        for bound, at in ready or [(None, at) for at in adjustments.listen]
    ]
    loop = Loop(sockets, listeners[0].trigger.pull_trigger, turn)
    limit.begin()
    for listener in listeners:
        listener.loop, listener.limit = loop, limit
    return listeners
