"""Clients of every kind at once, for a while: nothing is left behind, lost, or written to the log as a fault.

./dev test tests/test_soak.py --soak 600 makes it last ten minutes."""

import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable

import pytest
from conftest import Relay, new_key, number, until

CLIENTS = 32


class Client:
    """Does one odd thing after the other until it is time, and remembers which pages were accepted."""

    def __init__(self, relay: Relay, keys: list[str], until_time: float, seed: int) -> None:
        self.relay, self.keys, self.until, self.random = relay, keys, until_time, random.Random(seed)
        self.accepted: list[tuple[str, str]] = []
        self.thread = threading.Thread(target=self.run)
        self.pause = threading.Event()

    def run(self) -> None:
        actions = [self.post] * 3 + [self.wait] * 2 + [self.vanish, self.reset, self.half_close, self.pipeline]
        actions += [self.junk, self.cut_off, self.look]
        while time.monotonic() < self.until:
            key = self.random.choice(self.keys)
            with socket.create_connection(("127.0.0.1", self.relay.port), timeout=5) as connection:
                try:
                    self.random.choice(actions)(connection, key)
                except OSError:
                    continue  # a relay may hang up on most of these

    def head(self, key: str, call: str) -> bytes:
        return f"{call} HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\n".encode()

    def page(self, key: str) -> bytes:
        return self.head(key, "POST /notify") + b"Content-Length: 2\r\n\r\nhi"

    def waiting(self, key: str) -> bytes:
        return self.head(key, f"GET /mailboxes/{key}/wait") + b"\r\n"

    def post(self, connection: socket.socket, key: str) -> None:
        connection.sendall(self.page(key))
        answer = b""
        while not answer.endswith(b"}\n"):
            data = connection.recv(65536)
            if not data:
                return
            answer += data
        if answer.startswith(b"HTTP/1.1 202"):
            self.accepted.append((number(key), answer.decode().split('"id":"')[1][:16]))

    def wait(self, connection: socket.socket, key: str) -> None:
        connection.settimeout(2)
        connection.sendall(self.waiting(key))
        connection.recv(65536)

    def vanish(self, connection: socket.socket, key: str) -> None:
        connection.sendall(self.waiting(key))
        self.pause.wait(self.random.random() * 0.2)

    def reset(self, connection: socket.socket, key: str) -> None:
        self.vanish(connection, key)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def half_close(self, connection: socket.socket, key: str) -> None:
        connection.sendall(self.waiting(key))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(65536)

    def pipeline(self, connection: socket.socket, key: str) -> None:
        connection.sendall((self.page(key) + self.waiting(key)) * 3 + self.page(key)[:20])
        self.pause.wait(self.random.random() * 0.2)

    def junk(self, connection: socket.socket, key: str) -> None:
        connection.sendall(self.random.randbytes(50) + b"\r\n\r\n")
        if self.random.random() < 0.5:
            connection.recv(65536)

    def cut_off(self, connection: socket.socket, key: str) -> None:
        connection.sendall(self.page(key)[:-1])

    def look(self, connection: socket.socket, key: str) -> None:
        connection.sendall(self.head(key, f"GET /mailboxes/{key}/messages") + b"Connection: close\r\n\r\n")
        while connection.recv(65536):
            pass


def test_clients_of_every_kind_leave_nothing_behind(
    start_relay: Callable[..., Relay], pytestconfig: pytest.Config
) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=100_000)
    folder = f"/proc/{relay.process.pid}"
    descriptors, threads = len(os.listdir(f"{folder}/fd")), len(os.listdir(f"{folder}/task"))
    end = time.monotonic() + float(pytestconfig.getoption("--soak"))
    keys = [new_key() for _ in range(20)]
    clients = [Client(relay, keys, end, seed) for seed in range(CLIENTS)]
    for client in clients:
        client.thread.start()
    for client in clients:
        client.thread.join()
    until(lambda: len(os.listdir(f"{folder}/fd")) <= descriptors)
    until(lambda: len(os.listdir(f"{folder}/task")) <= threads)
    until(lambda: list(relay.spool.glob("leased/*/*.json")) == [])
    accepted = [page for client in clients for page in client.accepted]
    assert len(accepted) > 100
    places: dict[tuple[str, str], int] = {}
    for pattern in ("new/*/*.json", "archive/*/*/*.json"):
        for path in relay.spool.glob(pattern):
            page = path.parent.name, path.name[:16]
            places[page] = places.get(page, 0) + 1
    assert [page for page in accepted if places.get(page) != 1] == []
    assert set(places.values()) == {1}
    assert relay.stop() == 0
    assert "Traceback" not in relay.log.read_text()
