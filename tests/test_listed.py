"""A private relay: PAGERMCP_NUMBERS_FILE names those that it serves."""

from collections.abc import Callable
from pathlib import Path

import pytest
import requests
from conftest import Relay, new_key, number, until
from test_refusals import assert_refused, refusals
from test_serve import run
from test_status import TOKEN


def calls(relay: Relay, key: str) -> list[requests.Response]:
    """All kinds of calls that have to do with this mailbox."""
    return [
        relay.notify(key),
        relay.notify(number(key)),
        relay.post("/notify", json={"uuid": key}),
        relay.post(f"/to/{number(key)}", "hello"),
        relay.post(f"/to/{number(key)}?delay=1h", "hello"),
        relay.post(f"/mailboxes/{key}/consume"),
        relay.get(f"/mailboxes/{key}/messages"),
        relay.with_key(key, "GET", "/wait?timeout=0"),
        relay.with_key(key, "GET", "/mailbox?wait=0"),
    ]


def looked(relay: Relay, key: str) -> int:
    return relay.get(f"/mailboxes/{key}/messages").status_code


def test_it_serves_the_listed_numbers_and_no_other(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    listed, other, room = new_key(), new_key(), new_key()
    (tmp_path / "numbers").write_text(
        f"# who may\n\n{number(listed).upper()}  the build server\n{number(room)} # talk\n"
    )
    relay = start_relay(PAGERMCP_NUMBERS_FILE=tmp_path / "numbers", PAGERMCP_OPERATOR_TOKEN=TOKEN)
    assert {answer.status_code for answer in calls(relay, listed)} == {200, 202}
    refused = [*calls(relay, other), relay.with_key(other, "POST", "/api/agents", json={"name": "a"})]
    for answer in [*refused, relay.get(f"/mailboxes/{other}/wait"), relay.post("/mailboxes")]:
        assert_refused(answer, 403, "not_listed")
    assert not list(relay.spool.rglob(f"*{number(other)}*"))
    assert relay.with_key(room, "POST", "/api/agents", json={"name": "a"}).status_code == 201
    assert refusals(relay) == {"not_listed": len(refused) + 2}


def test_the_file_is_read_again_when_it_has_changed(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    first, second = new_key(), new_key()
    file = tmp_path / "numbers"
    file.write_text(number(first))
    relay = start_relay(PAGERMCP_NUMBERS_FILE=file, PAGERMCP_WORKERS=2)
    assert (looked(relay, first), looked(relay, second)) == (200, 403)
    with file.open("a") as more:
        more.write(f"\n{number(second)}\n")
    until(lambda: {looked(relay, second) for _ in range(10)} == {200})
    (tmp_path / "new").write_text(number(second))
    (tmp_path / "new").rename(file)
    until(lambda: {looked(relay, first) for _ in range(10)} == {403})


def test_while_the_file_makes_no_sense_what_it_listed_before_holds(
    start_relay: Callable[..., Relay], tmp_path: Path
) -> None:
    key, other = new_key(), new_key()
    file = tmp_path / "numbers"
    file.write_text(number(key))
    relay = start_relay(PAGERMCP_NUMBERS_FILE=file)
    file.write_text(f"{number(other)}\n{other}\n")

    def said() -> list[str]:
        assert (looked(relay, key), looked(relay, other)) == (200, 403)
        return [line for line in relay.log.read_text().splitlines() if "ERROR" in line]

    (line,) = until(said)
    assert line.endswith(
        "line 2 has a key, which nobody but its owner should have: list its number; what it listed before still holds"
    )
    assert other not in relay.log.read_text()
    file.unlink()
    until(lambda: len(said()) == 2)
    assert "No such file or directory" in said()[1]
    file.write_text(number(other))
    until(lambda: looked(relay, other) == 200)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "can't be read: No such file or directory"),
        (b"\n\nbuild\n", "line 3 does not begin with a number"),
        (b"\xff\xfe", "is not a text"),
        (
            b"0f9d2c1e-5b7a-4c3d-9e6f-1a2b3c4d5e6f",
            "line 1 has a key, which nobody but its owner should have: list its number",
        ),
    ],
)
def test_a_file_that_lists_no_numbers_is_one_line(tmp_path: Path, content: bytes | None, problem: str) -> None:
    file = tmp_path / "numbers"
    if content is not None:
        file.write_bytes(content)
    failed = run("serve", PAGERMCP_NUMBERS_FILE=file)
    assert (failed.returncode, failed.stderr) == (2, f"Error: PAGERMCP_NUMBERS_FILE='{file}': {problem}\n")
