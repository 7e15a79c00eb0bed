"""GET /mailboxes/<key>/messages: looking, taking nothing."""

import json
import time

import pytest
from conftest import Relay, new_key, number


def test_all_waiting_pages_are_shown_oldest_first_and_stay(relay: Relay, key: str) -> None:
    ids = [relay.notify(key, json={"n": n}).json()["id"] for n in range(3)]
    for _ in range(2):
        messages = relay.get(f"/mailboxes/{key}/messages").json()["messages"]
        assert [(page["id"], page["n"]) for page in messages] == list(zip(ids, range(3), strict=True))
        assert all(page["age_seconds"] in (0, 1, 2) and page["created_at"].endswith("Z") for page in messages)


def test_an_empty_or_unknown_mailbox_has_no_messages_and_is_not_made(relay: Relay, key: str) -> None:
    assert relay.get(f"/mailboxes/{key}/messages").json() == {"messages": []}
    assert not relay.new(key).exists()


def test_the_age_is_in_seconds(relay: Relay, key: str) -> None:
    relay.new(key).mkdir()
    an_hour_ago = time.time() - 3600
    page = {"created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(an_hour_ago)), "payload": {"a": 1}}
    (relay.new(key) / f"{int(an_hour_ago * 1e6)}.json").write_text(json.dumps(page))
    (shown,) = relay.get(f"/mailboxes/{key}/messages").json()["messages"]
    assert 3600 <= shown["age_seconds"] < 3660


def test_the_senders_fields_win_over_the_relays(relay: Relay, key: str) -> None:
    relay.notify(key, json={"id": "mine", "created_at": 7, "age_seconds": "old", "stale": "no"})
    (shown,) = relay.get(f"/mailboxes/{key}/messages").json()["messages"]
    assert shown == {"id": "mine", "created_at": 7, "age_seconds": "old", "stale": "no"}


@pytest.mark.parametrize("path", ["/messages", "/wait"])
def test_a_number_cannot_read(relay: Relay, key: str, path: str) -> None:
    relay.notify(key)
    answer = relay.get(f"/mailboxes/{number(key)}{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "number_cannot_read")
    assert relay.post(f"/mailboxes/{number(key)}/consume").status_code == 403


@pytest.mark.parametrize("text", ["x", "1" * 31, "%20", "..%2f..%2fetc"])
def test_a_path_without_a_valid_address_is_401_or_404(relay: Relay, text: str) -> None:
    answer = relay.get(f"/mailboxes/{text}/messages")
    assert answer.status_code in (401, 404)
    assert "error" in answer.json()


def test_another_key_shows_another_mailbox(relay: Relay, key: str) -> None:
    relay.notify(key)
    assert relay.get(f"/mailboxes/{new_key()}/messages").json() == {"messages": []}
