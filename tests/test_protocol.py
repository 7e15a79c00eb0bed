"""docs/protocol.md: its examples are run against a live relay, in their order, and its table of errors is whole."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import REPOSITORY, Relay, number

DOC = (REPOSITORY / "docs" / "protocol.md").read_text()
EXAMPLES: list[str] = re.findall(r"^```http\n(.*?)^```", DOC, re.DOTALL | re.MULTILINE)
ID = re.compile(r"\b[0-9]{16}\b")
VOLATILE = [
    (ID, "1111111111111111"),  # which is a number as well
    (re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z"), "<time>"),
    (re.compile(r'"mark": "[0-9a-f]{20}[.][0-9]+"'), '"mark": "<mark>"'),
]


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    folder = tmp_path_factory.mktemp("relay")
    relay = Relay(folder / "spool", folder / "log", PAGERMCP_OPERATOR_TOKEN="operators-only-0123456789")
    yield relay
    assert relay.stop() == 0
    assert "Traceback" not in relay.log.read_text()


def test_every_example_is_answered_as_it_says(relay: Relay) -> None:
    requests, answers = EXAMPLES[::2], EXAMPLES[1::2]
    assert len(requests) == len(answers) >= 12
    ids: dict[str, str] = {}  # those on the page, and the real ones
    for request, answer in zip(requests, answers, strict=True):
        request = ID.sub(lambda match, ids=ids: ids.get(match[0], match[0]), request)
        head, _, body = request.rstrip("\n").partition("\n\n")
        length = [] if "Content-Length" in head else [f"Content-Length: {len(body.encode())}"]
        lines = [*head.split("\n"), *length, "Connection: close", "", body]
        with relay.connect() as connection:
            connection.sendall("\r\n".join(lines).encode())
            got = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        compare(answer, got, request)
        ids |= dict(zip(ID.findall(answer), ID.findall(got), strict=False))


def compare(expected: str, got: str, request: str) -> None:
    expected_head, _, expected_body = expected.rstrip("\n").partition("\n\n")
    got_head, _, got_body = got.partition("\r\n\r\n")
    expected_status, *expected_headers = expected_head.split("\n")
    got_status, *got_headers = got_head.split("\r\n")
    assert got_status == expected_status, f"{request}\n{got}"
    for header in expected_headers:
        assert steady(header) in [steady(one) for one in got_headers], request
    if expected_body:
        assert steady(json.loads(got_body)) == steady(json.loads(expected_body)), request


def steady(value: Any) -> Any:
    """The value with what differs from run to run made the same."""
    text = json.dumps(value)
    for pattern, name in VOLATILE:
        text = pattern.sub(name, text)
    made = json.loads(text)
    if isinstance(made, dict) and "uuid" in made:
        made = dict.fromkeys(made, "<made>")
    return made


def test_the_number_in_the_examples_is_the_keys() -> None:
    key = re.findall(r"the key `([0-9a-f-]{36})`", DOC)[0]
    assert f"`{number(key)}`" in DOC


def test_the_table_of_errors_has_every_code_with_its_status_and_no_other() -> None:
    table = dict(re.findall(r"^\| `([a-z0-9_]+)` \| ([0-9]{3}) \|", DOC, re.MULTILINE))
    source = "".join(path.read_text() for path in (REPOSITORY / "pagermcp").rglob("*.py"))
    raised = {code: status for status, code in re.findall(r'Refused\(\s*([0-9]{3}),\s*"([a-z0-9_]+)"', source)}
    generic = {code: status for status, code in re.findall(r'([0-9]{3}): \("([a-z0-9_]+)"', source)}
    servers = {
        "bad_request": "400",
        "too_many_connections": "503",
        "too_slow": "408",
        "request_header_fields_too_large": "431",
        "not_implemented": "501",
    }
    assert table == raised | generic | servers


def test_every_call_of_the_application_is_described() -> None:
    source = "".join(path.read_text() for path in (REPOSITORY / "pagermcp" / "web").glob("*.py"))
    calls = re.findall(r'@blueprint\.(get|post)\("([^"]*)"\)', source)
    assert len(calls) >= 9
    for method, path in calls:
        pattern = re.escape(f"### {method.upper()} {path}").replace("<key>", "[0-9a-f-]{36}")
        pattern = pattern.replace("<number>", "[0-9a-f-]{36}").replace("<id>", "[0-9]{16}")
        assert re.search(rf"^{pattern}$", DOC, re.MULTILINE), (method, path)
