"""Keys and numbers."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagermcp.address import InvalidAddress, is_number, number_of, parse, redact

keys = st.uuids().filter(lambda key: key.version != 8)


def test_a_number_is_what_the_design_says() -> None:
    # worked out by hand: 8 digits of the key, then sha256("pagermcp number 1:" + bytes) with version and variant set
    assert number_of(uuid.UUID("12345678-1234-4678-9234-567812345678")) == "12345678-bb26-83b7-9127-cbd28335abd1"


@given(keys)
def test_a_number_is_a_version_8_uuid_that_begins_like_its_key_and_differs_from_it(key: uuid.UUID) -> None:
    number = uuid.UUID(number_of(key))
    assert is_number(number)
    assert not is_number(key)
    assert number.variant == uuid.RFC_4122
    assert str(number)[:8] == str(key)[:8]
    assert number != key


@given(st.uuids())
def test_the_number_of_a_number_is_itself(address: uuid.UUID) -> None:
    assert number_of(uuid.UUID(number_of(address))) == number_of(address)


@given(keys, keys)
def test_two_keys_have_two_numbers(one: uuid.UUID, other: uuid.UUID) -> None:
    assert (number_of(one) == number_of(other)) == (one == other)


@given(keys)
def test_every_form_of_a_uuid_is_the_same_address(key: uuid.UUID) -> None:
    for form in (str(key), str(key).upper(), key.hex, key.urn, f"{{{key}}}", f"  {key}\n"):
        assert parse(form) == key


@given(st.text() | st.sampled_from(["\uff11" * 32, "1" * 20 + "urn:" + "1" * 12, "1_" * 15 + "11", "1" * 31, "1" * 33]))
def test_other_text_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(InvalidAddress) as caught:
        parse(text)
    assert str(caught.value) == "not a UUID"


@given(keys, st.text(), st.text())
def test_redacting_leaves_no_key_in_any_form(key: uuid.UUID, before: str, after: str) -> None:
    for form in (str(key), key.hex, str(key).upper(), f"{key.hex[:5]}--{key.hex[5:]}"):
        line = redact(f"{before} /mailboxes/{form}/wait {after}")
        assert key.hex not in line.lower().replace("-", "")
        assert number_of(key) in line


def test_redacting_leaves_a_number_as_it_is(key: str) -> None:
    number = number_of(uuid.UUID(key))
    assert redact(f"page for {number}") == f"page for {number}"
