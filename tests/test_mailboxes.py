"""POST /mailboxes: a new key and its number."""

import uuid

from conftest import Relay, number

from pagermcp.address import is_number


def test_a_new_mailbox_has_a_key_of_version_4_and_its_number(relay: Relay) -> None:
    answer = relay.post("/mailboxes")
    assert answer.status_code == 201
    made = answer.json()
    assert set(made) == {"uuid", "number"}
    assert uuid.UUID(made["uuid"]).version == 4
    assert is_number(uuid.UUID(made["number"]))
    assert made["number"] == number(made["uuid"])
    assert answer.headers["Cache-Control"] == "no-store"


def test_its_folder_is_there_so_that_a_shell_can_move_a_page_in(relay: Relay) -> None:
    key = relay.post("/mailboxes").json()["uuid"]
    assert relay.new(key).is_dir()


def test_every_mailbox_is_another(relay: Relay) -> None:
    assert len({relay.post("/mailboxes").json()["uuid"] for _ in range(20)}) == 20


def test_no_registration_is_needed(relay: Relay, key: str) -> None:
    assert relay.get(f"/mailboxes/{key}/messages").json() == {"messages": []}
    assert relay.notify(key).status_code == 202
