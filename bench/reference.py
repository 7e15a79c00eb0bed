"""The yardstick: the seed's protocol on aiohttp and SQLite, one durable commit a page, waiters as futures.

What a competent first version looks like, and no product. Run: python reference.py DATABASE [wal]; with `wal` SQLite
keeps a write-ahead log, which needs one fsync a commit instead of several.
"""

import asyncio
import collections
import json
import sqlite3
import sys
import time
import uuid
from pathlib import Path

from aiohttp import web

MAKE = """
create table if not exists page (number integer primary key, id text, mailbox text, body text, at real);
create index if not exists by_mailbox on page (mailbox, number);
"""


class Relay:
    def __init__(self, database: Path, journal: str) -> None:
        self._database = sqlite3.connect(database, isolation_level=None)  # each statement is a commit
        self._database.execute(f"pragma journal_mode={journal}")
        self._database.execute("pragma synchronous=full")
        self._database.executescript(MAKE)
        self._waiting: dict[str, collections.deque[asyncio.Future[None]]] = collections.defaultdict(collections.deque)

    async def notify(self, request: web.Request) -> web.Response:
        mailbox = str(uuid.UUID(request.headers["Authorization"].removeprefix("Bearer ")))
        body = await request.text()
        json.loads(body)
        page = str(uuid.uuid4())
        insert = "insert into page (id, mailbox, body, at) values (?, ?, ?, ?)"
        self._database.execute(insert, (page, mailbox, body, time.time()))
        waiting = self._waiting[mailbox]
        while waiting:
            waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break
        return web.json_response({"accepted": True, "id": page}, status=202)

    async def wait(self, request: web.Request) -> web.Response:
        mailbox = str(uuid.UUID(request.match_info["mailbox"]))
        while (page := self._take(mailbox)) is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting[mailbox].append(waiter)
            await waiter
        return web.json_response(page)

    def _take(self, mailbox: str) -> dict[str, object] | None:
        find = "select number, id, body, at from page where mailbox = ? order by number limit 1"
        row = self._database.execute(find, (mailbox,)).fetchone()
        if row is None:
            return None
        self._database.execute("delete from page where number = ?", row[:1])
        return {"id": row[1], "age_seconds": round(time.time() - row[3]), **json.loads(row[2])}


async def main(database: Path, journal: str) -> None:
    relay = Relay(database, journal)
    application = web.Application()
    application.add_routes([web.post("/notify", relay.notify), web.get("/mailboxes/{mailbox}/wait", relay.wait)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    print(f"reference on http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), "wal" if "wal" in sys.argv else "delete"))
