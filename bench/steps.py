"""What is measured. A step starts a relay afresh in an empty folder, and gives one value for each of its figures."""

import dataclasses
import math
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from bench.load import Cannot, Connection, Load
from bench.servers import Server, Variant, mailbox_folder

BUSY = 0.9  # of the time; beyond it the load generator holds the relay up

Value = float | None


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is measured. Times in seconds."""

    seconds: float = 8
    waiters: tuple[int, ...] = (1, 100, 1000, 2000, 10000)
    idle_at: tuple[int, ...] = (100, 10000)
    idle_seconds: tuple[float, float] = 20, 40  # the relay gives each waiter a sign of life every 20 s
    rounds: int = 200
    mailboxes: int = 100_000


FULL = Size()
QUICK = Size(0.5, (1, 20), (20,), (1, 1), 10, 200)


@dataclasses.dataclass(frozen=True)
class Step:
    """`measure(variant, folder)` gives the figures' values, and notes. `ceiling`: of the load generator alone, too."""

    name: str
    figures: tuple[str, ...]
    measure: Callable[[Variant, Path], tuple[list[Value], list[str]]]
    ceiling: bool = False


def percentile(times: list[float], part: float) -> float:
    """The smallest time that `part` of all do not exceed (nearest rank)."""
    return sorted(times)[max(0, math.ceil(part * len(times)) - 1)]


def milliseconds(times: list[float]) -> list[Value]:
    return [1000 * percentile(times, part) if times else None for part in (0.5, 0.99)]


def steps(size: Size) -> list[Step]:
    how = [f"a reader asleep: {by} wakes it, {part} ms" for by in ("POST", "mv") for part in ("p50", "p99")]
    made = [
        Step("posts", ("durable posts/s", "post p50 ms", "post p99 ms"), lambda *where: posts(*where, size), True),
        Step("asleep", tuple(how), lambda *where: asleep(*where, size)),
    ]
    for count in size.waiters:
        who = f"{count:,} waiter" + "s" * (count > 1)
        figures = [f"{who}: post→wake cycles/s", f"{who}: wake p50 ms", f"{who}: wake p99 ms"]
        if count > 1:
            figures += [f"{who}: all woken, s", f"{who}: memory of one, KB"]
        if count in size.idle_at:
            figures += [f"{who}: idle CPU, first 20 s, % of a core", f"{who}: idle CPU, then, % of a core"]
        made.append(Step(f"wake-{count}", tuple(figures), lambda *where, n=count: wake(*where, size, n), True))
    made.append(Step("start", (f"start with {size.mailboxes:,} mailboxes, s",), lambda *where: start_up(*where, size)))
    return made


def posts(variant: Variant, folder: Path, size: Size) -> tuple[list[Value], list[str]]:
    """To 1,000 mailboxes that nobody reads, 32 at a time; then the relay is killed, and its pages are counted."""
    keys = [str(uuid.uuid4()) for _ in range(1000)]
    with Server(variant, folder) as server, Load(server.port) as load:
        load.page(keys, 32, size.seconds / 8, wakes=False)
        times = load.page(keys, 32, size.seconds, wakes=False)
        server.kill()
    if variant.count and (lost := load.accepted - variant.count(folder)) > 0:
        raise Cannot(f"{lost:,} of {load.accepted:,} accepted pages were not on disk after kill -9")
    return [len(times) / size.seconds, *milliseconds(times)], held_up(variant, load)


def asleep(variant: Variant, folder: Path, size: Size) -> tuple[list[Value], list[str]]:
    """One reader, who has had time to fall asleep, and one page: by POST, and by mv into its folder."""
    times: dict[bool, list[float]] = {False: [], True: []}
    with Server(variant, folder) as server, Load(server.port) as load:
        load.add_waiters(1)
        load.page(load.keys, 1)
        poster = Connection(load.loop, server.port)
        for by_file in (False, True)[: 1 + variant.files]:
            for number in range(size.rounds):
                load.loop.run(0.02)
                arrived: list[float] = []
                payload = load.expect(arrived.append)
                (folder / "page.json").write_bytes(payload)
                began = time.perf_counter()
                if by_file:
                    (folder / "page.json").rename(mailbox_folder(folder, load.keys[0]) / f"page-{number}.json")
                else:
                    load.post(poster, load.keys[0], payload, lambda now: None)
                load.loop.until(lambda arrived=arrived: arrived, "a page did not come")
                times[by_file].append(arrived[0] - began)
    return milliseconds(times[False]) + milliseconds(times[True]), [] if variant.files else ["mv: it knows no files"]


def wake(variant: Variant, folder: Path, size: Size, count: int) -> tuple[list[Value], list[str]]:
    """Each at a mailbox of its own: all once, 32 at a time, so that each is known to wait; then 8 at a time."""
    values: list[Value] = []
    with Server(variant, folder) as server, Load(server.port) as load:
        load.add_waiters(1)
        load.page(load.keys, 1, size.seconds / 8)
        before = server.memory()
        load.add_waiters(count - 1)
        load.page(load.keys, 32)
        if count > 1:
            values = [load.seconds, (server.memory() - before) / (count - 1)]
        load.page(load.keys, 8, size.seconds / 8)
        times = load.page(load.keys, 8, size.seconds)
        notes = held_up(variant, load)
        values[:0] = [len(times) / size.seconds, *milliseconds(times)]
        if count in size.idle_at and variant.count:
            for seconds in size.idle_seconds:
                began, spent = time.perf_counter(), server.cpu()
                load.loop.run(seconds)
                values.append(100 * (server.cpu() - spent) / (time.perf_counter() - began))
    return values, notes


def start_up(variant: Variant, folder: Path, size: Size) -> tuple[list[Value], list[str]]:
    """From the start of the process until the answer with a page that had been there before."""
    keys = [str(uuid.uuid4()) for _ in range(size.mailboxes)]
    assert variant.fill is not None
    with Server(variant, folder):
        pass  # makes its files
    variant.fill(folder, keys)
    os.sync()  # the disk is quiet when it starts
    began = time.perf_counter()
    with Server(variant, folder) as server, Load(server.port) as load:
        answered: list[tuple[int, float]] = []
        request = f"GET /mailboxes/{keys[-1]}/wait HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        Connection(load.loop, server.port).ask(request, lambda status, _, now: answered.append((status, now)))
        load.loop.until(lambda: answered, "no page", 120)
        if answered[0][0] != 200:
            raise Cannot(f"the first answer was {answered[0][0]}")
        return [answered[0][1] - began], []


def held_up(variant: Variant, load: Load) -> list[str]:
    if load.busy < BUSY or variant.count is None:  # which is the ceiling itself
        return []
    return [f"the load generator was busy {load.busy:.0%} of the time and may be the limit"]
