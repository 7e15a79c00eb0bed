"""What the server takes from the inside of waitress. When a new version fails here, read what it changed, see whether
`pagermcp.server` still fits, and then put the new sums in."""

import hashlib
import inspect
from typing import Any

import pytest
from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import BaseWSGIServer, TcpWSGIServer
from waitress.task import ErrorTask, Task, WSGITask
from waitress.trigger import trigger

from pagermcp.server.channel import Channel
from pagermcp.server.channel import Task as OurTask
from pagermcp.server.listener import Listener

# The code that ours overrides, calls, or relies on in between, and the first digits of its SHA-256.
SUMS: dict[Any, str] = {
    HTTPChannel.__init__: "a194769af3fd",
    HTTPChannel.service: "f73afa13748e",
    HTTPChannel.received: "08d6df73fb69",
    HTTPChannel.write_soon: "20eedb92a823",
    HTTPChannel.handle_write: "6c900f395b30",
    HTTPChannel.handle_read: "5f1fb08c95aa",
    HTTPChannel.handle_close: "8f59b9aaa455",
    HTTPChannel.send_continue: "842ebf929f6d",
    HTTPChannel.cancel: "ba151d8a01e6",
    HTTPChannel.readable: "e4722238ce60",
    HTTPChannel.writable: "d0cbd4ae1b3b",
    HTTPChannel._flush_some: "fe7a9a752a41",
    HTTPChannel._flush_exception: "c9f3751ffdb0",
    HTTPChannel._flush_some_if_lockable: "51e124355e63",
    HTTPChannel.add_channel: "235de3cdfd2c",
    HTTPChannel.del_channel: "a018ed85e5e5",
    HTTPRequestParser.received: "b466c02de37d",
    HTTPRequestParser.parse_header: "c2c093b90178",
    Task.service: "d96bb4019c48",
    Task.finish: "9bc080ca7474",
    Task.write: "f9a97135b3b5",
    Task.build_response_header: "2cf70b88816f",
    Task.set_close_on_finish: "90433a0ffcaf",
    WSGITask.execute: "207afc60fcf3",
    WSGITask.get_environment: "3bb57be6c7db",
    ErrorTask.execute: "4abe3262db04",
    BaseWSGIServer.__init__: "e70a16b5b63c",
    BaseWSGIServer.readable: "4eea9c1036b5",
    BaseWSGIServer.handle_accept: "69bfcf0fc140",
    BaseWSGIServer.maintenance: "4ab5b7f595bc",
    BaseWSGIServer.add_task: "19e994eb9cc9",
    TcpWSGIServer.set_socket_options: "50d6e1ffff09",
    wasyncore.dispatcher: "4d74dc7e94b4",
    wasyncore.read: "65efa0038062",
    wasyncore.write: "da89ca259756",
    trigger: "48bf86fea4c8",
}


def source_sum(code: Any) -> str:
    return hashlib.sha256(inspect.getsource(code).encode()).hexdigest()[:12]


@pytest.mark.parametrize("code", SUMS, ids=lambda code: code.__qualname__)
def test_waitress_is_the_one_that_the_server_was_written_for(code: Any) -> None:
    assert source_sum(code) == SUMS[code], "waitress has changed here; see the head of this file"


@pytest.mark.parametrize(
    ("ours", "theirs", "names"),
    [
        (
            Channel,
            HTTPChannel,
            "service task_class error_task_class parser_class write_soon readable writable handle_write handle_read "
            "handle_close send_continue _flush_some _flush_outbufs_below_high_watermark",
        ),
        (OurTask, WSGITask, "execute get_environment write"),
        (Listener, TcpWSGIServer, "channel_class readable handle_accept maintenance pull_trigger"),
    ],
    ids=["channel", "task", "listener"],
)
def test_what_the_server_overrides_is_still_there(ours: type, theirs: type, names: str) -> None:
    """Or else, with a method renamed in waitress, ours would be left behind and never called."""
    assert [name for name in names.split() if not hasattr(theirs, name) or name not in vars(ours)] == []


def test_a_request_that_is_not_answered_stays_and_its_task_is_asked_for_again() -> None:
    """The heart of parking: what is raised past waitress leaves the request at the head of its channel."""

    class Raised(BaseException):
        pass

    class Request:
        error = None
        path = "/"

    def service() -> None:
        raise Raised

    asked: list[Any] = []

    def task_class(channel: Any, request: Any) -> Any:
        asked.append(request)
        return type("Task", (), {"service": staticmethod(service), "request": request})()

    channel = HTTPChannel.__new__(HTTPChannel)
    channel.requests, channel.connected, channel.task_class = [Request()], True, task_class
    for _ in range(2):
        with pytest.raises(Raised):
            channel.service()
    assert asked == channel.requests * 2
