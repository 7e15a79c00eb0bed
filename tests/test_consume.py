"""POST /mailboxes/<key>/consume: take the oldest page, or null."""

import concurrent.futures

from conftest import Relay, until


def test_pages_are_taken_oldest_first_and_then_null(relay: Relay, key: str) -> None:
    ids = [relay.notify(key, json={"n": n}).json()["id"] for n in range(3)]
    taken = [relay.post(f"/mailboxes/{key}/consume").json()["message"] for _ in range(4)]
    assert [page and page["id"] for page in taken] == [*ids, None]


def test_a_taken_page_is_a_file_in_the_archive(relay: Relay, key: str) -> None:
    id = relay.notify(key).json()["id"]
    relay.post(f"/mailboxes/{key}/consume")
    (path,) = until(lambda: relay.archived(key))
    assert path.name == f"{id}.json"
    assert list(relay.new(key).iterdir()) == []


def test_what_the_senders_fields_hide_is_in_the_headers(relay: Relay, key: str) -> None:
    id = relay.notify(key, json={"id": "mine", "created_at": 1, "age_seconds": 2, "stale": "no"}).json()["id"]
    answer = relay.post(f"/mailboxes/{key}/consume")
    assert answer.json()["message"] == {"id": "mine", "created_at": 1, "age_seconds": 2, "stale": "no"}
    assert answer.headers["Pager-Id"] == id
    assert answer.headers["Pager-Created-At"].endswith("Z")
    assert answer.headers["Pager-Age"] in ("0", "1")
    assert int(answer.headers["Content-Length"]) == len(answer.content)


def test_many_who_take_at_once_get_every_page_once(relay: Relay, key: str) -> None:
    ids = {relay.notify(key).json()["id"] for _ in range(60)}
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: relay.post(f"/mailboxes/{key}/consume").json()["message"], range(70)))
    taken = [page["id"] for page in answers if page]
    assert len(taken) == 60
    assert set(taken) == ids


def test_get_takes_nothing(relay: Relay, key: str) -> None:
    relay.notify(key)
    assert relay.get(f"/mailboxes/{key}/consume").status_code == 405
    assert len(list(relay.new(key).iterdir())) == 1
