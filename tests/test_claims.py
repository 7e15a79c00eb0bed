"""Many who claim at once, in several processes: every page goes to one of them."""

import subprocess
import sys
from pathlib import Path

from conftest import REPOSITORY, new_key, number

from pagermcp.spool import Spool
from pagermcp.spool.page import now, page_line

MAILBOXES, PAGES = 20, 1000
CLAIMER = """
import sys, threading
from pagermcp.spool import Spool

root, worker, numbers = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
spool = Spool(root, worker=worker)
mailboxes = [spool.mailbox(number) for number in numbers]
taken, lock = [], threading.Lock()
print("ready", flush=True)
sys.stdin.readline()

def claim():
    for mailbox in mailboxes:
        while (page := mailbox.claim(600)) is not None:
            assert mailbox.acknowledge(page.name)
            with lock:
                taken.append(f"{mailbox.number} {page.id} {page.payload['n']}")

threads = [threading.Thread(target=claim) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("\\n".join(taken))
"""


def test_sixteen_claimers_in_two_processes_take_each_of_20000_pages_once(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"))
    numbers = [number(new_key()) for _ in range(MAILBOXES)]
    expected = set()
    for box in numbers:
        Path(spool.path("new", box)).mkdir()
        for n in range(PAGES):
            id = f"{1_795_966_550_281_088 + n:016d}"
            Path(spool.path("new", box, f"{id}.json")).write_bytes(page_line(f'{{"n":{n}}}', now()))
            expected.add(f"{box} {id} {n}")
    command = [sys.executable, "-c", CLAIMER, spool.root]
    processes = [
        subprocess.Popen(
            [*command, worker, *numbers], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
        )
        for worker in ("0", "1")
    ]
    taken: list[list[str]] = []
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        taken.append(process.communicate(timeout=100)[0].split("\n")[:-1])
        assert process.returncode == 0
    assert all(taken)  # both had a share
    both = taken[0] + taken[1]
    assert len(both) == len(set(both)) == MAILBOXES * PAGES
    assert set(both) == expected
    assert len(list(Path(spool.root).glob("archive/*/*/*.json"))) == MAILBOXES * PAGES
