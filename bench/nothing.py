"""A relay that does nothing but pass bytes on: what it reaches is the ceiling of the load generator. Keeps no page."""

import collections
import selectors
import socket


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    waiting: dict[bytes, socket.socket] = {}
    pages: dict[bytes, collections.deque[bytes]] = collections.defaultdict(collections.deque)
    print(f"nothing on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)

    def answer(connection: socket.socket, status: bytes, body: bytes) -> None:
        connection.sendall(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))

    while True:
        for key, _ in selector.select():
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if connection is listener:
                selector.register(listener.accept()[0], selectors.EVENT_READ)
                continue
            try:
                request = connection.recv(1 << 16)
            except ConnectionError:
                request = b""
            if not request:
                selector.unregister(connection)
                connection.close()
            elif request.startswith(b"GET /mailboxes/"):
                mailbox = request[15:51]
                if pages[mailbox]:
                    answer(connection, b"200 OK", pages[mailbox].popleft())
                else:
                    waiting[mailbox] = connection
            else:  # a post, in one piece, as our generator sends it
                head, _, page = request.partition(b"\r\n\r\n")
                mailbox = head.partition(b"Bearer ")[2][:36]
                answer(connection, b"202 Accepted", b'{"accepted":true}')
                if waiter := waiting.pop(mailbox, None):
                    answer(waiter, b"200 OK", page)
                elif not pages[mailbox]:  # one is enough: a relay that keeps nothing
                    pages[mailbox].append(page)


if __name__ == "__main__":
    main()
