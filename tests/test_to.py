"""POST /to/<number>: paging by an address in the path."""

import uuid

import pytest
from conftest import Relay, number
from test_notify import payload_in


def test_a_number_in_the_path_is_paged(relay: Relay, key: str) -> None:
    answer = relay.post(f"/to/{number(key)}", "build done")
    assert answer.status_code == 202
    assert answer.json()["number"] == number(key)
    assert payload_in(relay, key) == {"message": "build done"}


def test_a_webhooks_json_is_the_payload(relay: Relay, key: str) -> None:
    relay.post(f"/to/{number(key)}", json={"alerts": [{"status": "firing"}], "uuid": "theirs"})
    assert payload_in(relay, key) == {"alerts": [{"status": "firing"}]}


def test_curls_default_form_type_is_taken_as_text(relay: Relay, key: str) -> None:
    relay.post(f"/to/{number(key)}", "a=1&b=2", headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert payload_in(relay, key) == {"message": "a=1&b=2"}


def test_other_forms_of_the_number_work(relay: Relay, key: str) -> None:
    assert relay.post(f"/to/{uuid.UUID(number(key)).hex.upper()}", "x").json()["number"] == number(key)


def test_an_authorization_meant_for_somebody_else_does_not_matter(relay: Relay, key: str) -> None:
    answer = relay.post(f"/to/{number(key)}", "x", headers={"Authorization": "Basic dTpw"})
    assert answer.json()["number"] == number(key)


def test_a_key_in_the_path_is_refused_with_the_advice_to_use_the_number(relay: Relay, key: str) -> None:
    answer = relay.post(f"/to/{key}", "x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "key_in_url")
    assert "number" in answer.json()["error"]["hint"]
    assert not relay.new(key).exists()


@pytest.mark.parametrize("address", ["x", "1234", "..", "%2e%2e", "a%2Fb", "%00", "%ff"])
def test_anything_else_in_the_path_is_401_or_404(relay: Relay, address: str) -> None:
    answer = relay.post(f"/to/{address}", "x")
    assert answer.status_code in (401, 404, 405)
    assert answer.json()["error"]["hint"]


def test_get_is_405_and_says_what_is_allowed(relay: Relay, key: str) -> None:
    answer = relay.get(f"/to/{number(key)}")
    assert answer.status_code == 405
    assert "POST" in answer.headers["Allow"]
