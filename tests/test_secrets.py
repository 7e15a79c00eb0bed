"""No key is ever written down: not in the spool, the log, a traceback, a process's arguments, or an answer."""

import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

from conftest import Relay, new_key, number, until


def test_after_a_full_run_no_key_is_anywhere(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    relay = start_relay()
    key, made = new_key(), relay.post("/mailboxes").json()["uuid"]
    keys = [key, made]
    answers = []
    for one in keys:
        waiting = relay.start_waiting(one)
        answers += [relay.notify(one, json={"message": "hi"}), waiting.result(10)]
        answers += [relay.post("/notify", json={"uuid": one, "message": "by the body"}), relay.notify(number(one))]
        answers += [relay.post(f"/to/{number(one)}", "x"), relay.post(f"/to/{one}", "x")]
        answers += [relay.get(f"/mailboxes/{one}/messages"), relay.post(f"/mailboxes/{one}/consume")]
        answers += [relay.get(f"/mailboxes/{one}/wait?max_age_seconds=x"), relay.get(f"/mailboxes/{one}/nothing")]
        answers += [relay.post("/notify", "{", headers={"Authorization": one, "Content-Type": "application/json"})]
        answers += [relay.post("/notify", "x", headers={"Authorization": f"Bearer {one}, Bearer {one}"})]
        answers += [relay.post("/notify", "x", headers={"Authorization": f"Bearer {one}0"})]
    # faults of every kind that write to the log, with a key in the path or the header
    waiting = relay.start_waiting(key)
    with relay.connect() as connection:
        connection.sendall(f"GET /mailboxes/{key}/wait HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        connection.sendall(f"GET /mailboxes/{key}/messages HTTP/1.1\r\nbad header\r\n\r\n".encode())
    (tmp_path / "spool" / "tmp").rename(tmp_path / "spool" / "away")
    answers += [relay.notify(key), relay.get("/healthz"), relay.get("/")]
    (tmp_path / "spool" / "away").rename(tmp_path / "spool" / "tmp")
    (relay.new(key) / "broken").write_text("not json")
    relay.get(f"/mailboxes/{key}/messages")
    until(lambda: relay.get(f"/mailboxes/{key}/messages") and list(relay.spool.glob("dead/*/*/*.why")))
    arguments = Path(f"/proc/{relay.process.pid}/cmdline").read_bytes()
    environment = Path(f"/proc/{relay.process.pid}/environ").read_bytes()
    relay.notify(key)
    waiting.result(10)
    relay.stop()

    spellings = {text.encode() for one in keys for text in (one, one.upper(), uuid.UUID(one).hex)}
    found = subprocess.run(
        ["grep", "-rlaiF", *[part for text in spellings for part in ("-e", text)], str(relay.spool), str(relay.log)],
        capture_output=True,
        text=True,
    )
    assert (found.returncode, found.stdout) == (1, "")
    assert not any(one in name for one in keys for name in map(str, relay.spool.rglob("*")))
    assert not any(text in arguments + environment for text in spellings)
    assert not any(one in answer.text for one in keys for answer in answers)
    assert "to dead/" in relay.log.read_text()
    assert number(key) in relay.log.read_text()


def test_a_traceback_names_the_number_and_not_the_key(key: str) -> None:
    import logging
    import sys

    from pagermcp.server.log import TextFormatter

    try:
        raise RuntimeError(f"while serving /mailboxes/{key}/wait")
    except RuntimeError:
        record = logging.LogRecord("waitress", 40, __file__, 1, "Exception on %s", (f"/x/{key}",), sys.exc_info())
    text = TextFormatter().format(record)
    assert key not in text
    assert text.count(number(key)) == 2
