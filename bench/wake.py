"""How long does a page take to wake a reader? By HTTP, and by mv from a shell, on an otherwise idle machine.

Run: ./dev bench [ROUNDS]. Starts a relay of its own on a free port and a temporary spool, and prints milliseconds from
just before the post (or just before `mv` starts) until the reader has the page in its hands.
"""

import concurrent.futures
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import requests

from pagermcp.address import number_of


def measure(rounds: int, url: str, folder: Path, send: Callable[[requests.Session, str, Path], None]) -> list[float]:
    """Seconds from sending to the reader's having the page, for each round, sorted."""
    key = uuid.uuid4()
    mailbox = folder / "spool" / "new" / number_of(key)
    times = []
    pause = threading.Event()
    with requests.Session() as reader, requests.Session() as sender, concurrent.futures.ThreadPoolExecutor(1) as thread:
        sender.get(f"{url}/version", timeout=10)

        def wait() -> float:
            reader.get(f"{url}/mailboxes/{key}/wait", timeout=30).json()
            return time.perf_counter()

        for _ in range(rounds):
            (folder / "page.json").write_text('{"message": "moved in"}')
            waiting = thread.submit(wait)
            pause.wait(0.05)  # so that the reader is asleep: this is what is measured
            began = time.perf_counter()
            send(sender, str(key), mailbox)
            times.append(waiting.result(30) - began)
    return sorted(times)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        relay = subprocess.Popen(
            [sys.executable, "-m", "pagermcp", "serve", "--port", "0", "--data-dir", str(folder / "spool")],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert relay.stdout is not None
            url = relay.stdout.readline().split(" on ")[1].split(",")[0]

            def by_http(sender: requests.Session, key: str, mailbox: Path) -> None:
                sender.post(f"{url}/notify", json={"message": "done"}, headers={"Authorization": key}, timeout=10)

            def by_mv(sender: requests.Session, key: str, mailbox: Path) -> None:
                subprocess.run(["mv", folder / "page.json", mailbox / f"{uuid.uuid4()}.json"], check=True)

            def by_rename(sender: requests.Session, key: str, mailbox: Path) -> None:
                os.rename(folder / "page.json", mailbox / f"{uuid.uuid4()}.json")

            for title, send in (("POST /notify", by_http), ("mv from a shell", by_mv), ("rename()", by_rename)):
                times = measure(rounds, url, folder, send)
                p50, p99 = (1000 * times[int(rounds * part)] for part in (0.5, 0.99))
                print(
                    f"{title:16} {rounds} rounds: p50 {p50:6.2f} ms, p99 {p99:6.2f} ms, most {1000 * times[-1]:6.2f} ms"
                )
        finally:
            relay.terminate()
            relay.wait(10)
            relay.stdout.close()


if __name__ == "__main__":
    main()
