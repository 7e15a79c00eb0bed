"""A process killed at any step of anything leaves each page in one place, or, if it was not accepted, maybe in none.

The steps are those of the file layer, which raises an audit event before each. A process of its own runs each scenario
again and again, killed one step later every time, and looks at the spool as the next process would."""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagermcp.spool import Mailbox, Options, Spool, send
from pagermcp.spool.page import PageName, now, read_page

BOX = "9f1c6cf7-a88c-8526-8708-faae46504050"


def deliver(spool: Spool, box: Mailbox, accepted: Callable[[str], None]) -> None:
    for n in range(2):
        accepted(box.deliver(f'{{"n":{n}}}'))


def claim_and_archive(spool: Spool, box: Mailbox, accepted: Callable[[str], None]) -> None:
    accepted(box.deliver("{}"))
    page = box.claim(60)
    assert page is not None
    assert box.acknowledge(page.name)


def lease_return(spool: Spool, box: Mailbox, accepted: Callable[[str], None]) -> None:
    accepted(box.deliver("{}"))
    for _ in range(5):
        box.claim(-1)
        spool.come_due()


def give_back(spool: Spool, box: Mailbox, accepted: Callable[[str], None]) -> None:
    accepted(box.deliver("{}"))
    page = box.claim(60)
    assert page is not None
    box.release(page.name)


def expiry(spool: Spool, box: Mailbox, accepted: Callable[[str], None]) -> None:
    accepted(box.deliver("{}"))
    box.expire_waiting(now())


def adoption(spool: Spool, box: Mailbox, accepted: Callable[[str], None]) -> None:
    box.make()
    bring(spool, "page.json", b'{"from":"a shell"}')
    box.waiting()


def broken_page(spool: Spool, box: Mailbox, accepted: Callable[[str], None]) -> None:
    box.make()
    bring(spool, "1795966550281088.json", b"")
    box.claim(60)


def broken_file(spool: Spool, box: Mailbox, accepted: Callable[[str], None]) -> None:
    box.make()
    bring(spool, "page.json", b"not json")
    box.claim(60)


def recovery(spool: Spool, box: Mailbox, accepted: Callable[[str], None]) -> None:
    box.make()
    Path(spool.temporary(adopted=(BOX, "page.json"))).write_bytes(b'{"from":"a shell"}')
    spool.recover()


def delayed(spool: Spool, box: Mailbox, accepted: Callable[[str], None]) -> None:
    accepted(box.schedule("{}", -1).page.id)
    spool.come_due()


def given_back_for_later(spool: Spool, box: Mailbox, accepted: Callable[[str], None]) -> None:
    accepted(box.deliver("{}"))
    page = box.claim(60)
    assert page is not None
    box.release(page.name, -1)
    spool.come_due()


def replaced(spool: Spool, box: Mailbox, accepted: Callable[[str], None]) -> None:
    for delay in (0, 3600, 0):
        id = send(spool, box, "{}", Options(replace="r", delay=delay)).id
        assert id is not None
        accepted(id)


SCENARIOS = [delayed, given_back_for_later, replaced]
SCENARIOS += [recovery, deliver, claim_and_archive, lease_return, give_back, expiry, adoption, broken_page, broken_file]


def bring(spool: Spool, name: str, content: bytes) -> None:
    path = spool.path("new", BOX, name)
    Path(path).write_bytes(content)
    os.utime(path, (time.time() - 60,) * 2)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_killed_at_any_step(scenario: Callable[..., None], tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, __file__, scenario.__name__, tmp_path], capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stderr
    rounds = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(rounds) > 3
    for killed_before, accepted, places, foreign, _ in rounds:
        seen = f"killed before {killed_before}: accepted {accepted}, found {places}, {foreign} foreign"
        assert all(len(places.get(id, [])) == 1 for id in accepted), seen
        assert all(len(states) == 1 for states in places.values()), seen
        assert len(set(places) - set(accepted)) <= 1, seen  # the page that was under way
        if scenario in (adoption, broken_file, broken_page):
            begun = killed_before != "mkdir"  # then the shell had not brought it yet
            assert begun <= len(places) + foreign <= 2, seen
            after_the_link = killed_before in ("fsync directory", "remove")
            assert len(places) + foreign < 2 or after_the_link, seen  # then it comes twice, rather than never
    assert rounds[-1][0] == "nothing"  # the last round came to its end


# What is sent again after a kill, and runs that are to report again


def once(spool: Spool, box: Mailbox, accepted: Callable[[str], None]) -> None:
    accepted(str(send(spool, box, "{}", Options(idempotency_key="k")).id))


def once_again(spool: Spool, box: Mailbox) -> Any:
    id = send(spool, box, "{}", Options(idempotency_key="k")).id
    return [id, [page.id for page in box.waiting()]]


def switch_extended(spool: Spool, box: Mailbox, accepted: Callable[[str], None]) -> None:
    for _ in range(2):
        send(spool, box, "{}", Options(run="r", expect=0.1), empty=True)
        accepted("switch")


def switch_ended(spool: Spool, box: Mailbox, accepted: Callable[[str], None]) -> None:
    for expect in (0.1, None):
        send(spool, box, "{}", Options(run="r", expect=expect), empty=True)
        accepted("switch")


def alarms(spool: Spool, box: Mailbox) -> Any:
    while spool.schedule.of(BOX):
        spool.agenda.wait(time.monotonic() + 1)
        spool.come_due()
    return [page.payload["status"] for page in box.waiting()]


AFTERWARDS = {once: once_again, switch_extended: alarms, switch_ended: alarms}


def after_a_kill(scenario: Callable[..., None], folder: Path) -> list[tuple[str, list[str], Any]]:
    command = [sys.executable, __file__, scenario.__name__, folder]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    return [(before, accepted, after) for before, accepted, *_, after in map(json.loads, run.stdout.splitlines())]


def test_a_key_sent_again_after_a_kill_at_any_step_brings_one_page(tmp_path: Path) -> None:
    for killed_before, accepted, (id, waiting) in after_a_kill(once, tmp_path):
        assert waiting == [id], killed_before
        assert accepted in ([], [id]), killed_before


def test_a_switch_that_was_set_and_extended_pages_once_after_a_kill_at_any_step(tmp_path: Path) -> None:
    for killed_before, accepted, paged in after_a_kill(switch_extended, tmp_path):
        assert paged in ([["lost"]] if accepted else [[], ["lost"]]), killed_before


def test_a_switch_that_was_ended_pages_no_more_after_a_kill_at_any_step(tmp_path: Path) -> None:
    for killed_before, accepted, paged in after_a_kill(switch_ended, tmp_path):
        expected: list[list[str]] = [[["lost"], []], [["lost"], []], [[]]][len(accepted)]
        assert paged in expected, (killed_before, len(accepted))


# The process that does it


def drive(scenario: Callable[..., None], folder: Path) -> None:
    step = 0
    killed_before = ""
    while killed_before != "nothing":
        root = str(folder / f"{step}")
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            perform(scenario, root, step, writer)
        os.close(writer)
        with open(reader) as pipe:
            said = [line.rstrip("\n").split(" ", 1) for line in pipe]
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        (killed_before,) = [rest for word, rest in said if word == "killed"] or ["nothing"]
        accepted = [rest for word, rest in said if word == "accepted"]
        print(json.dumps([killed_before, accepted, *look(root, AFTERWARDS.get(scenario, lambda spool, box: None))]))
        step += 1


def perform(scenario: Callable[..., None], root: str, last: int, writer: int) -> None:
    """Run the scenario and die before its step number `last`."""
    steps = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal steps
        if event == "pagermcp.file":
            if steps == last:
                os.write(writer, f"killed {arguments[0]}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)
            steps += 1

    try:
        spool = Spool(root)
        box = spool.mailbox(BOX)
        sys.addaudithook(hook)
        scenario(spool, box, lambda id: os.write(writer, f"accepted {id}\n".encode()))
        os._exit(0)
    finally:  # not the way of an exception, which would end in the parent's code
        traceback.print_exc()
        os._exit(1)


def look(root: str, act: Callable[[Spool, Mailbox], Any]) -> tuple[dict[str, list[str]], int, Any]:
    """Where each page is after the next process has met the mailbox, how many foreign files wait there, and what comes
    of what that process does then."""
    spool = Spool(root)
    spool.recover()
    outcome = act(spool, spool.mailbox(BOX))
    places: dict[str, list[str]] = {}
    foreign = 0
    patterns = {"new": f"new/{BOX}/*", "leased": f"leased/{BOX}/*", "scheduled": "scheduled/*"}
    patterns |= {"archive": f"archive/*/{BOX}/*", "dead": f"dead/*/{BOX}/*"}
    for state, pattern in patterns.items():
        for path in Path(root).glob(pattern):
            if path.suffix == ".why":
                continue
            assert state != "dead" or path.with_suffix(".why").exists(), path  # none without its reason
            name = PageName.parse(path.name.rpartition("-")[2].replace(".expired", "").replace(".replaced", ""))
            if name is None or (path.read_bytes() == b"" and state == "new"):
                assert state == "new", path
                foreign += 1
                continue
            places.setdefault(name.id, []).append(f"{state}/{path.name}")
            if state != "dead" and path.read_bytes():
                read_page(name, path.read_bytes())  # nothing half-written is ever shown
    return places, foreign, outcome


if __name__ == "__main__":
    drive(next(one for one in [*SCENARIOS, *AFTERWARDS] if one.__name__ == sys.argv[1]), Path(sys.argv[2]))
