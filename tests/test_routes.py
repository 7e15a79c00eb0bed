"""Paths are looked up as Werkzeug would match them."""

from pathlib import Path
from typing import Any

import pytest
import requests
from conftest import Relay
from raw import Raw
from werkzeug.exceptions import HTTPException
from werkzeug.routing import Map, Rule

from pagermcp.server.serve import _spool
from pagermcp.settings import Settings
from pagermcp.spool import Janitor
from pagermcp.waking import Switchboard, make_watcher
from pagermcp.web.app import create_app
from pagermcp.web.routes import Routes
from pagermcp.web.services import Services

METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "BREW")


@pytest.fixture
def rules(tmp_path: Path) -> Map:
    settings = Settings(data_dir=str(tmp_path / "spool"), operator_token="t" * 16)
    spool, switchboard = _spool(settings), Switchboard()
    janitor = Janitor(spool, switchboard.ring, switchboard.waiting)
    return create_app(Services(settings, spool, switchboard, make_watcher("off", spool, switchboard), janitor)).url_map


def by_werkzeug(rules: Map, path: str, method: str) -> Any:
    try:
        return rules.bind("").match(path, method, return_rule=True)
    except HTTPException:
        return None


def test_every_path_of_the_relay_goes_where_werkzeug_would_send_it(rules: Map) -> None:
    routes, found = Routes(rules.iter_rules()), 0
    paths = {rule.rule.replace("<", "").replace(">", "") for rule in rules.iter_rules()}
    odd = {path + more for path in paths for more in ("/", "//", "/x", "x")} | {"", "/", "//", "/mailboxes//wait"}
    for path in paths | odd | {"/to/", "/to/a/b", "/mailboxes/ä b/wait", "/mailboxes/<key>/wait", "/static/chat.js"}:
        for method in METHODS:
            right = by_werkzeug(rules, path, method)
            here = routes.find(path, method)
            assert here is None or here == right, (path, method)
            found += here is not None
            if path in paths and right and "path:" not in right[0].rule:
                assert here == right, (path, method)
    assert found > 60


def test_what_is_not_plain_is_left_to_werkzeug() -> None:
    rules = Map([Rule("/a/<int:n>"), Rule("/b/<x>/<y>"), Rule("/c/<path:rest>"), Rule("/d-<x>"), Rule("/a/<name>/c")])
    routes = Routes(rules.iter_rules())
    assert [routes.find(path, "GET") for path in ("/a/7", "/b/1/2", "/c/1", "/c/1/2", "/d-1")] == [None] * 5


def test_a_fixed_segment_comes_before_one_that_may_be_anything() -> None:
    rules = Map([Rule("/a/<x>", methods=["GET", "POST"]), Rule("/a/b", methods=["GET"])])
    routes = Routes(rules.iter_rules())
    assert [rule.rule for rule, _ in filter(None, (routes.find("/a/b", "GET"), routes.find("/a/c", "GET")))] == [
        "/a/b",
        "/a/<x>",
    ]
    assert routes.find("/a/", "GET") is None


def test_what_a_path_allows_is_told(relay: Relay) -> None:
    for path, methods in {
        "/notify": "OPTIONS, POST",
        "/version": "GET, HEAD, OPTIONS",
        "/to/x": "OPTIONS, POST",
    }.items():
        answer = requests.options(relay.url + path, timeout=10)
        assert ", ".join(sorted(answer.headers["Allow"].split(", "))) == methods
        assert requests.delete(relay.url + path, timeout=10).status_code == 405


@pytest.mark.parametrize("path", ["/version", "/static/chat.js", "/"])
def test_every_answer_has_one_date(relay: Relay, path: str) -> None:
    with Raw(relay) as client:
        client.ask("GET", path)
        while b"\r\n\r\n" not in client.came:
            client.receive()
        head = bytes(client.came).partition(b"\r\n\r\n")[0]
    assert head.lower().count(b"\r\ndate: ") == 1
    assert head.lower().count(b"\r\nserver: ") == 1
