"""Pages as files, and what may be one."""

import datetime
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagermcp.spool.page import MAX_DEPTH, BadPage, PageName, now, page_line, parse_payload, read_page, to_json

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)
payloads = st.dictionaries(st.text(), json_values, max_size=8)
ids = st.integers(0, 10**16 - 1).map(lambda value: f"{value:016d}")


@given(payloads, st.sampled_from([None, 2]), st.booleans())
def test_a_payload_comes_back_as_it_was_sent(payload: dict[str, Any], indent: int | None, ascii: bool) -> None:
    line = page_line(parse_and_keep(json.dumps(payload, indent=indent, ensure_ascii=ascii)), now())
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    assert read_page(PageName("0" * 16, 1), line).payload == payload


def parse_and_keep(text: str) -> str:
    parse_payload(text)
    return text


def test_a_payload_stays_the_senders_own_text() -> None:
    text = '{"n":1.10,\r\n "big":12345678901234567890123,\t"e":1E2,"s":"\\u00e9\\/"}'
    assert text.replace("\r\n", "  ").encode() in page_line(text, now())


@given(ids, st.integers(1, 999_999))
def test_a_name_survives_being_written_and_read(id: str, attempt: int) -> None:
    name = PageName(id, attempt)
    assert PageName.parse(name.file) == name
    assert name.handle == (id if attempt == 1 else f"{id}.{attempt}")
    assert name.next() == PageName(id, attempt + 1)


@pytest.mark.parametrize(
    "file",
    [
        "1.json",
        "1795966550281088",
        "1795966550281088.JSON",
        "1795966550281088.json\n",
        "x1795966550281088.json",
        "1795966550281088.0.json",
        "1795966550281088.02.json",
        "1795966550281088.1.2.json",
        "1795966550281088.expired.json",
        "١٧٩٥٩٦٦٥٥٠٢٨١٠٨٨.json",
    ],
)
def test_any_other_name_is_not_a_pages(file: str) -> None:
    assert PageName.parse(file) is None


def test_names_sort_by_age_as_with_ls() -> None:
    oldest, young, younger = PageName("0" * 15 + "9", 1), PageName("0" * 14 + "10", 2), PageName("0" * 14 + "10", 11)
    assert sorted([younger, oldest, young]) == [oldest, young, younger]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON: Expecting value at line 1 column 1"),
        ('{"a":1,\n "b" 2}', "not JSON: Expecting ':' delimiter at line 2 column 6"),
        ("[1]", "not a JSON object but an array"),
        ('"x"', "not a JSON object but a string"),
        ("null", "not a JSON object but null"),
        ("true", "not a JSON object but a boolean"),
        ("3", "not a JSON object but a number"),
        ('{"a":NaN}', "NaN is not JSON"),
        ('{"a":-Infinity}', "-Infinity is not JSON"),
        ('{"a":1e999}', "the number 1e999 is too large to be read back"),
        ('{"a":' + "9" * 5000 + "}", "a number has more digits than can be read back"),
        ('{"a":"\n"}', "not JSON: Invalid control character at line 1 column 7"),
        ('{"a":' + "[" * 100_000, f"nested deeper than {MAX_DEPTH} levels"),
        ('{"a":' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}", f"nested deeper than {MAX_DEPTH} levels"),
    ],
)
def test_what_readers_could_not_parse_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(BadPage) as caught:
        parse_payload(text)
    assert reason in str(caught.value)


def test_nesting_up_to_the_limit_can_be_read_back() -> None:
    text = '{"a":' + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1) + "}"
    parse_payload(text)
    assert read_page(PageName("0" * 16, 1), page_line(text, now())).payload == json.loads(text)


def test_many_brackets_in_strings_or_side_by_side_are_no_nesting() -> None:
    assert parse_payload(json.dumps({"a": "[" * 500, "b": [[]] * 500}))["a"] == "[" * 500


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not JSON"),
        (b"\0" * 100, "not JSON"),
        (b'{"created_at":"2026-01-01T00:00:00Z"', "not JSON"),
        (b'{"created_at":"2026-01-01T00:00:00Z"}', "no payload"),
        (b'{"payload":{}}', "no created_at"),
        (b'{"created_at":"today","payload":{}}', "created_at is not a time"),
        (b'{"created_at":5,"payload":{}}', "created_at is not a time"),
        (b'{"created_at":"0001-01-01T00:00:00+23:59","payload":{}}', "created_at is not a time"),
        (b'{"created_at":"2026-01-01T00:00:00","payload":{}}', "no time zone"),
        (b'{"created_at":"2026-01-01T00:00:00Z","due_at":"soon","payload":{}}', "due_at is not a time"),
        (b'{"created_at":"2026-01-01T00:00:00Z","expires_at":7,"payload":{}}', "expires_at is not a time"),
        (b'{"created_at":"2026-01-01T00:00:00Z","payload":[]}', "no object"),
        (b'{"created_at":"\xff","payload":{}}', "not UTF-8 at byte 15"),
    ],
)
def test_a_file_that_is_no_page_says_why(content: bytes, reason: str) -> None:
    with pytest.raises(BadPage, match=reason):
        read_page(PageName("0" * 16, 1), content)


def test_a_page_that_was_sent_ahead_of_its_time_ages_from_when_that_came() -> None:
    page = read_page(PageName("0" * 16, 1), b'{"created_at":"2026-01-01T00:00:00Z","payload":{}}')
    assert page.created == "2026-01-01T00:00:00.000000Z"
    assert page.since == datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    ahead = page_line("{}", page.created_at, due_at="2026-01-02T00:00:00.000000Z")
    assert read_page(PageName("0" * 16, 1), ahead).since == datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)


@given(json_values)
def test_json_is_compact_utf_8_that_reads_back(value: Any) -> None:
    assert json.loads(to_json(value)) == value


def test_a_lone_surrogate_stays_an_escape() -> None:
    assert to_json({"a": "\ud800é"}) == b'{"a":"\\ud800\\u00e9"}'
    assert parse_payload('{"a":"\\ud800"}') == {"a": "\ud800"}
