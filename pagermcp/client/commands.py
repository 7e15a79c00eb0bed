"""The client's commands: what `pagermcp send`, `run`, `wait` and the others take, print, and exit with."""

import contextlib
import dataclasses
import functools
import json
import math
import os
import select
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NoReturn
from urllib.parse import urlsplit

import click

from pagermcp import address
from pagermcp.client import fence, runner, show
from pagermcp.client.doctor import examine, examine_wake
from pagermcp.client.listen import CannotRun, Commands, Listener
from pagermcp.client.outbox import Kept, Outbox, Outgoing
from pagermcp.client.relay import BadCall, NotARelay, Page, Refused, Relay, RelayError, Unreachable
from pagermcp.client.report import Report
from pagermcp.client.session import NoSession, make_session, session_file
from pagermcp.durations import in_words, seconds_in

NOTHING, WRONG_CALL, UNREACHABLE, TROUBLE, OTHER, UNWRITABLE = 1, 2, 3, 9, 10, 11
_REFUSED = {401: 4, 403: 4, 404: 5, 409: 6, 422: 6, 413: 7, 429: 8}
_MOST_CELL = 24
_QUIET_SECONDS = 2.0
_BESIDE_SECONDS = 5.0  # for how long a command that sends a page also sends what is in the outbox


def fail(why: object, code: int) -> NoReturn:
    """Say why in one line on standard error, and exit."""
    note(str(why))
    sys.exit(code)


def exit_code_of(error: Exception) -> int:
    """The exit code for what a call raised."""
    if isinstance(error, Refused):
        return _REFUSED.get(error.status, TROUBLE if error.status >= 500 else OTHER)
    return UNREACHABLE if isinstance(error, Unreachable | NotARelay) else OTHER


class Command(click.Command):
    """A command whose failures are exit codes."""

    def invoke(self, context: click.Context) -> Any:
        while (descriptor := os.open(os.devnull, os.O_RDONLY)) <= 2:
            pass  # one that our caller has closed must not become a connection, into which we would print
        os.close(descriptor)
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or else nobody could ask how a child has ended
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends us as it ends others
        try:
            return super().invoke(context)
        except (NoSession, BadCall, address.InvalidAddress) as error:
            fail(error, WRONG_CALL)
        except RelayError as error:
            fail(error, exit_code_of(error))
        except show.Unwritable as error:
            fail(error, UNWRITABLE)


def time_option(least: float = 0.001, most: float = math.inf) -> Callable[[str], float]:
    """The type of an option that is a length of time, in seconds."""

    def seconds(text: str) -> float:
        value = seconds_in(text)
        if value is None or value < least:
            raise click.BadParameter(f"{text!r} is no time, as in 90, 90s, 30m, 2h or 7d")
        if value > most:
            raise click.BadParameter(f"must be at most {in_words(most)}")
        return value

    return seconds


def _key(text: str) -> str:
    if not 0 < len(text) <= 255 or "," in text or not text.isprintable():
        raise click.BadParameter("must have 1 to 255 characters that can be printed, and no comma")
    return text


def _number(text: str) -> str:
    try:
        return address.number_of(address.parse(text))
    except address.InvalidAddress:
        raise click.BadParameter("is no UUID; the number to page is what `pagermcp number` prints there") from None


def _field(text: str) -> tuple[str, str]:
    name, equals, value = _text(text).partition("=")
    if not name or not equals or name == "uuid":
        raise click.BadParameter(f"{text!r} is not NAME=VALUE; uuid can't be a name")
    return name, value


def _text(argument: str) -> str:
    """An argument as text, though it may have bytes that are no UTF-8."""
    return os.fsencode(argument).decode(errors="replace")


COMMANDS: dict[str, click.Command] = {}


def command(*shared: click.Parameter, **settings: Any) -> Callable[[Callable[..., None]], click.Command]:
    """A command of the client, with these parameters behind its own."""

    def register(function: Callable[..., None]) -> click.Command:
        command = click.command(cls=Command, **settings)(function)
        command.params += shared
        COMMANDS[str(command.name)] = command
        return command

    return register


url_option = click.Option(["--url"], metavar="URL", help="The relay.  [PAGER_URL; http://127.0.0.1:8080]")
_json = click.Option(["--json", "as_json"], is_flag=True, help="For a program: a line of JSON for each.")
_to = click.Option(["--to"], metavar="NUMBER", type=_number, help="Number of the mailbox.  [this folder's]")
_outbox = click.Option(["--outbox/--no-outbox"], default=True, help="Keep a page that no relay takes now.  [outbox]")
_job_id = click.Option(["--job-id"], metavar="ID", type=_text, help="JOB_ID of the page: which job it was.")
_project = click.Option(["--project"], metavar="NAME", type=_text, help="PROJECT of the page.")
_fields = click.Option(
    ["--field", "fields"],
    metavar="NAME=VALUE",
    type=_field,
    multiple=True,
    callback=lambda context, option, pairs: dict(pairs),
    help="A further field; may be repeated.",
)
_expect = click.Option(
    ["--expect"], metavar="TIME", type=time_option(), help="Page an alarm if it has not ended by then."
)
_ids = click.Argument(["ids"], metavar="ID...", nargs=-1, required=True)
_REPORT = (_job_id, _project, _fields, _to, _expect, _outbox, url_option)


@command(short_help="Print the number by which others page this folder.")
@click.option("--key", is_flag=True, help="Print the key, with which the mailbox can be read.")
def number(key: bool) -> None:
    """Print this folder's number, by which others page it. Its key is made when there is none, in .pager_session.

    \b
    pagermcp number
    mv page.json spool/new/$(pagermcp number)/
    """
    made = make_session(session_file(), note)
    if key and address.is_number(made):
        fail(f"{session_file()} holds a number, and its key is elsewhere", WRONG_CALL)
    show.put(f"{made if key else address.number_of(made)}\n".encode())


@command(_job_id, _project, _fields, _to, _outbox, url_option)
@click.argument("message", required=False)
@click.option("--json", "as_json", is_flag=True, help="The message is a JSON object, and so is what is printed.")
@click.option("--status", metavar="TEXT", type=_text, help="status of the page, such as success, failed, question.")
@click.option("--delay", metavar="TIME", type=time_option(0), help="Deliver it only after this time.")
@click.option("--expires", metavar="TIME", type=time_option(), help="Archive it if it is unread after this time.")
@click.option("--replace", metavar="KEY", type=_key, help="Replace the waiting page with the same key.")
@click.option("--run", metavar="KEY", type=_key, help="A report about this run (a dead-man's switch).")
@click.option(
    "--expect",
    metavar="TIME",
    type=time_option(),
    help="With --run: page an alarm if it does not report by then.",
)
@click.option("--idempotency-key", metavar="KEY", type=_key, help="Sent again with the same key: no second page.")
def send(
    message: str | None,
    as_json: bool,
    status: str | None,
    job_id: str | None,
    project: str | None,
    fields: dict[str, str],
    to: str | None,
    outbox: bool,
    url: str | None,
    idempotency_key: str | None,
    **options: Any,
) -> None:
    """Send a page: MESSAGE, or standard input. Prints its id.

    When no relay takes it now, it is kept in the outbox, and goes with the next page or by `pagermcp outbox flush`.

    \b
    pagermcp send "the backup is done"
    df -h | pagermcp send --job-id disk
    pagermcp send --to 0f9d2c1e-9ae8-812c-839c-75714745f412 "Which data set?"
    pagermcp send --json '{"status": "success", "exit_code": 0}'
    pagermcp send --delay 2h "look at the deployment"
    """
    if options["expect"] is not None and options["run"] is None:
        raise click.UsageError("--expect needs --run KEY")
    if options["run"] is not None and options["delay"] is not None:
        raise click.UsageError("--run can't be delayed")
    extra: dict[str, Any] = _payload(PROJECT=project, JOB_ID=job_id, status=status) | fields
    text = _message(message, needed=not extra)
    payload: str | dict[str, Any] = text or ""
    if as_json:
        payload = _object(text or "{}") | extra
    elif extra:
        payload = extra if text is None else {"message": text} | extra
    relay = Relay(to, url)
    page = Outgoing(relay.url, relay.number, payload, idempotency_key or str(uuid.uuid4()), time.time(), **options)
    box = Outbox() if outbox else None
    try:
        sent = box.send(box.keep(page, note), page, note) if box else page.deliver()
    except Kept as why:
        _say_kept(why)
        if as_json:
            show.put_json({"accepted": False, "kept": True})
        return
    except OSError as error:
        fail(f"the page is in the outbox, which can't be used: {error.filename}: {error.strerror}", TROUBLE)
    if as_json:
        show.put_json(sent.answer)
    elif sent.id:
        show.put(f"{show.in_one_line(sent.id)}\n".encode())
    if to and sent.id and not sent.last_read:
        note("nobody has ever read that mailbox; is the number right?")
    elif sent.waiters:
        _remark(f"sent to {sent.number}: its reader is waiting")
    else:
        _remark(f"sent to {sent.number}: nobody waits there now; {_last_seen(sent.last_read)}")
    if outbox:
        _flush_others(relay.url)


@command(*_REPORT, short_help="Run a command, page when it ends.", context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--message", metavar="TEXT", type=_text, help="What the page says; otherwise how the command ended.")
@click.option("--tail", metavar="N", type=click.IntRange(0), default=10, help="Send the last N lines of output (10).")
@click.option("--show-command", is_flag=True, help="Send the command line too. It may hold secrets.")
def run(
    command: tuple[str, ...], message: str | None, tail: int, show_command: bool, job_id: str | None, **options: Any
) -> None:
    """Run a command unchanged, send a page when it has ended, and exit with its exit code.

    \b
    pagermcp run -- make -j4
    pagermcp run --job-id backup --expect 2h -- ./backup.sh /home
    pagermcp run --to 0f9d2c1e-9ae8-812c-839c-75714745f412 -- pytest
    """
    report = None
    try:
        report = Report(job_id or "run", **options)
    except (NoSession, BadCall, address.InvalidAddress) as error:
        note(f"nobody will be paged: {error}")  # which is no reason not to make the backup

    def keep(ended: runner.Ended) -> None:
        took = "" if ended.error else f" after {in_words(round(ended.seconds, 1))}"
        told = _payload(
            status="failed" if ended.exit_code else "success",
            message=message or f"{ended}{took}",
            exit_code=ended.exit_code,
            signal=ended.signal,
            seconds=round(ended.seconds, 3),
            output_lost=ended.lost,
            command=list(map(_text, command)) if show_command else None,
            logs=ended.logs,
        )
        if report:
            report.keep(told)

    with runner.run(list(command), tail, report.begin if report else lambda: None, keep) as ended:
        if report:
            _send(report)
        if ended.error:
            note(f"{command[0]}: {ended.error}")
        if ended.lost:
            note(f"the output could not be written: {ended.lost}")
    if ended.interrupted:
        os.kill(os.getpid(), signal.SIGINT)  # as the command did: that is how a shell knows that a loop is to end
    sys.exit(ended.exit_code)


@command(*_REPORT, short_help="Page when a process ends.")
@click.argument("pid", type=click.IntRange(1, (1 << 31) - 1))
@click.option("--message", metavar="TEXT", type=_text, help="What the page says; otherwise that it has ended.")
def pid(pid: int, message: str | None, job_id: str | None, **options: Any) -> None:
    """Send a page when a running process ends; it may be another user's. How it ended can't be known.

    \b
    pagermcp pid 1234 --message "the upload is through"
    pagermcp pid $(pgrep -o rsync) --expect 6h
    """
    report = Report(job_id or str(pid), **options)
    began = time.monotonic()
    try:
        runner.wait_for_process(pid, report.begin)
    except ProcessLookupError:
        fail(f"there is no process {pid}", NOTHING)
    seconds = round(time.monotonic() - began, 3)
    report.keep({"status": "ended", "message": message or f"process {pid} has ended", "seconds": seconds})
    if error := _send(report):
        sys.exit(exit_code_of(error))


@command(url_option)
@click.option("--timeout", metavar="TIME", type=time_option(0), help="How long to wait; 0: don't.  [for ever]")
@click.option("--max", "most", metavar="N", type=click.IntRange(1, 100), default=1, help="Up to N pages at once (1).")
@click.option(
    "--lease", metavar="TIME", type=time_option(1, 43200), default="60", help="How long they are yours (60 s)."
)
@click.option("--ack", is_flag=True, help="Acknowledge them when they are printed.")
@click.option("--max-age", metavar="TIME", type=time_option(), help="Older pages go to the archive unread.")
def wait(timeout: float | None, most: int, lease: float, ack: bool, max_age: float | None, url: str | None) -> None:
    """Wait for pages and print each as a line of JSON. Exit 0 with a page, 1 without.

    A page that is not acknowledged, here by --ack or later by `pagermcp ack HANDLE`, comes again when its lease ends.
    Output that can't be written is not acknowledged.

    \b
    pagermcp wait --ack
    pagermcp wait --timeout 5m --ack | jq .payload
    pagermcp wait --max 10 --lease 10m
    """
    relay = Relay(url=url)
    _remark(f"waiting for a page to {relay.number}")
    contact = functools.partial(_flush_others, relay.url)
    pages = relay.wait(timeout=timeout, max=most, lease=lease, max_age=max_age, on_contact=contact)
    if not pages:
        sys.exit(NOTHING)
    try:
        show.put_json(*(page.answer for page in pages))
    except show.Unwritable:
        with contextlib.suppress(RelayError):  # then they come back when their lease ends
            relay.release(*pages)
        raise
    if ack:
        relay.ack(*pages)
    else:
        handles = " ".join(page.handle for page in pages)
        _remark(f"leased for {in_words(lease)}; when you are done: pagermcp ack {handles}")
    contact()


@command(url_option, short_help="Handle pages as they come.")
@click.option("--exec", "command", metavar="COMMAND", help="A shell command that handles each page, from its input.")
@click.option("--jobs", metavar="N", type=click.IntRange(1, 64), default=1, help="Handle up to N pages at once (1).")
@click.option(
    "--lease",
    metavar="TIME",
    type=time_option(1, 43200),
    default="60",
    help="How long each is yours; it is renewed (60 s).",
)
def listen(command: str | None, jobs: int, lease: float, url: str | None) -> None:
    """Stay connected, and print each page as a line of JSON, or have a command handle it.

    The command gets the page on its standard input, as JSON, and in PAGER_ID, PAGER_MESSAGE, PAGER_STATUS,
    PAGER_JOB_ID, PAGER_PROJECT, PAGER_EXIT_CODE, PAGER_AGE (seconds), PAGER_STALE, PAGER_ATTEMPT, PAGER_CREATED_AT and
    PAGER_HANDLE. When it exits with 0 the page is acknowledged; otherwise it comes again, later each time, and is dead
    after the fifth. SIGTERM or Ctrl-C: what is under way is finished first; at the second it is ended.

    \b
    pagermcp listen
    pagermcp listen --exec 'notify-send "$PAGER_STATUS" "$PAGER_MESSAGE"'
    pagermcp listen --jobs 4 --exec ./handle-page
    """
    if command is None and jobs > 1:
        raise click.UsageError("--jobs needs --exec")
    if command is not None and not command.strip():
        raise click.UsageError("--exec has no command")
    relay = Relay(url=url)
    note(f"listening for pages to {relay.number}")
    contact = functools.partial(_flush_others, relay.url)
    commands = Commands(command) if command else None
    try:
        handle, hurry = (commands.handle, commands.end) if commands else (_print, None)
        Listener(relay, handle, note, contact, jobs=jobs, lease=lease).run(hurry)
    except CannotRun as error:
        fail(error, OTHER)
    os._exit(0)  # at once, so that the relay does not hand a page to the wait that is still open


@command(_json, url_option, short_help="Pages that wait, are leased, or are to come.")
def inbox(as_json: bool, url: str | None) -> None:
    """Look at the pages that wait, are leased, or are to come. Takes none.

    \b
    pagermcp inbox
    pagermcp inbox --json | jq -r .payload.message
    """
    relay = Relay(url=url)
    pages = [page for state in ("leased", "waiting", "scheduled") for page in relay.pages(state, limit=1000)]
    _list(pages, as_json, "no pages")


@command(_json, url_option, short_help="Pages that are done with.")
@click.option("--limit", metavar="N", type=click.IntRange(1, 1000), default=20, help="The last N pages (20).")
def archive(limit: int, as_json: bool, url: str | None) -> None:
    """Look at the last pages that were read, came too late, were replaced, or are dead.

    \b
    pagermcp archive
    pagermcp archive --limit 100 --json
    """
    relay = Relay(url=url)
    pages = [page for state in ("archived", "dead") for page in relay.pages(state, limit=limit)]
    _list(sorted(pages, key=lambda page: page.id)[-limit:], as_json, "the archive is empty")


@command(_json, url_option, name="show")
@click.argument("id")
def show_page(id: str, as_json: bool, url: str | None) -> None:
    """Show one page, wherever it is.

    \b
    pagermcp show 1795981500901952
    pagermcp show 1795981500901952 --json | jq -r .payload.logs
    """
    relay = Relay(url=url)
    for _ in range(3):  # it may be moving on just now
        place = relay.receipt(id)
        before = f"{int(place['id']) - 1:016d}"
        for page in relay.pages(place["state"], since=before, limit=1):
            if page.id == place["id"]:
                if as_json:
                    show.put_json(page.answer)
                    return
                said = ["", *show.fields(page.payload)]
                if not os.isatty(1):  # a model may read it
                    said = [fence.block("", (line.replace("<", "\\u003c") for line in said[1:]))]
                show.put_lines([*show.about(page), *said])
                return
    fail(f"page {id} is on the move; try again", _REFUSED[404])


@command(_ids, url_option, short_help="Acknowledge leased pages.")
def ack(ids: tuple[str, ...], url: str | None) -> None:
    """Acknowledge leased pages, by the handle that `wait` and `inbox` show.

    \b
    pagermcp ack 1795981500901952 1795981500901952.2
    """
    Relay(url=url).ack(*ids)


@command(_ids, url_option, short_help="Let archived or dead pages wait again.")
def replay(ids: tuple[str, ...], url: str | None) -> None:
    """Let copies of archived or dead pages wait again. Prints their new ids.

    \b
    pagermcp replay 1795981500901952
    """
    try:
        show.put_lines(Relay(url=url).replay(*ids))
    except Refused as error:
        show.put_lines(copy["id"] for copy in error.answer.get("replayed", []))
        raise


@command(_to, _json, url_option, short_help="Where a page is.")
@click.argument("id")
def receipt(id: str, to: str | None, as_json: bool, url: str | None) -> None:
    """Say where a page is: in this folder's mailbox, or with --to in another.

    \b
    pagermcp receipt 1795981500901952
    pagermcp receipt --to 0f9d2c1e-9ae8-812c-839c-75714745f412 1795981500901952
    """
    found = Relay(to, url).receipt(id)
    show.put_json(found) if as_json else show.put_lines(show.fields(found))


@command(_json, short_help="Pages that no relay could take yet.")
@click.argument("what", type=click.Choice(["list", "flush"]), default="list")
def outbox(what: str, as_json: bool) -> None:
    """List the pages that no relay could take yet, or send them now.

    \b
    pagermcp outbox
    pagermcp outbox flush
    """
    box = Outbox()
    try:
        waiting = box.waiting()
        if what == "list":
            _list_outbox(box, waiting, as_json)
            return

        def counted() -> Iterator[str]:
            for count, path in enumerate(waiting, 1):
                _progress(f"{count} of {len(waiting)}", end=count == len(waiting))
                yield path

        flushed = box.flush(counted())
    except OSError as error:
        fail(f"the outbox {box.folder} can't be used: {error.strerror}", TROUBLE)
    if as_json:
        counts = {name: len(getattr(flushed, name)) for name in ("sent", "left", "refused")}
        show.put_json(counts)
    else:
        show.put(f"{flushed}\n".encode())
    if flushed.trouble:
        fail(flushed.trouble, exit_code_of(flushed.trouble))


def _list_outbox(box: Outbox, waiting: list[str], as_json: bool) -> None:
    rows = []
    for path, why in [*((path, "") for path in waiting), *box.set_aside().items()]:
        try:
            page = box.read(path)
        except (OSError, ValueError) as error:
            note(str(error))
            continue
        payload = page.payload if isinstance(page.payload, dict) else {"message": page.payload}
        if as_json:
            told = {"file": path, "url": page.url, "to": page.to, "payload": payload}
            show.put_json(told | ({"refused": why} if why else {}))
        what = "refused: " + why if why else in_words(max(0, round(time.time() - page.created)))
        host = urlsplit(page.url).netloc
        rows.append([show.in_one_line(cell) for cell in (what, page.to[:8], host, payload.get("message"))])
    if not as_json:
        titles = ["AGE", "TO", "RELAY", "MESSAGE"]
        show.put_lines(show.table(titles, rows) if rows else ["the outbox is empty"])


@command(_json, url_option, short_help="Test the way from a sender to here.")
@click.option(
    "--wait", "seconds", metavar="TIME", type=time_option(0, 240), default="70", help="How long a wait to test (70 s)."
)
@click.option(
    "--wake",
    "client",
    type=click.Choice(["opencode", "claude", "codex", "mcp"]),
    help="Page this project, and see whether that agent acknowledges the page within --wait.",
)
@click.pass_context
def doctor(context: click.Context, seconds: float, client: str | None, as_json: bool, url: str | None) -> None:
    """Find out whether pages would reach this machine, and what to do if not. Takes 70 s for a long wait.

    \b
    pagermcp doctor
    pagermcp doctor --wait 0
    pagermcp doctor --wake opencode
    """
    if client and seconds < 1:
        raise click.UsageError("--wake needs some time to --wait for the agent")
    relay = Relay(url=url)
    findings = examine_wake(relay, client, seconds, _progress) if client else examine(relay, seconds, _progress)
    colours = {"ok": "green", "note": "yellow", "bad": "red"}
    is_bad = False
    for finding in findings:
        is_bad = is_bad or finding.verdict == "bad"
        if as_json:
            show.put_json(dataclasses.asdict(finding))
            continue
        _progress("")
        verdict = finding.verdict.ljust(4)
        if os.isatty(1) and context.color is not False:
            verdict = click.style(verdict, fg=colours[finding.verdict])
        remedy = [f"      -> {show.in_one_line(finding.remedy)}"] if finding.remedy else []
        show.put_lines([f"{verdict}  {show.in_one_line(finding.what)}", *remedy])
    if is_bad:
        sys.exit(NOTHING)


def _progress(text: str, end: bool = False) -> None:
    if os.isatty(2):
        with contextlib.suppress(OSError):
            os.write(2, f"\r\x1b[2K{text}{chr(10) * end}".encode())


def _remark(text: str) -> None:
    """Say something to people who are there to read it."""
    if os.isatty(2):
        click.echo(text, err=True)


def note(text: str) -> None:
    """Say something to people, on standard error. That nobody reads it is no reason to fail."""
    with contextlib.suppress(OSError):
        click.echo(f"pagermcp: {show.in_one_line(text)}", err=True)


def _say_kept(why: Kept) -> None:
    note(f"not sent yet: {why}. It is kept, and goes with the next page, or by: pagermcp outbox flush")


def _send(report: Report) -> Exception | None:
    """Send the report of something that has ended, and say what went wrong; why it is neither sent nor kept."""
    try:
        report.send(note)
    except Kept as why:
        _say_kept(why)
    except (RelayError, BadCall, OSError) as error:
        note(f"not sent: {error}")
        return error
    else:
        if report.outbox:
            _flush_others(report.url)
    finally:
        if report.trouble:
            note(report.trouble)
    return None


def _flush_others(url: str) -> None:
    """The relay at this URL takes pages, so it may take those that it could not before."""
    with contextlib.suppress(OSError):  # `pagermcp outbox` says it
        flushed = Outbox().flush(url=url, seconds=_BESIDE_SECONDS)
        if flushed.sent or flushed.refused:
            trouble = f"; {flushed.trouble}" if flushed.trouble else ""
            note(f"from the outbox: {flushed}{trouble}")


def _print(page: Page) -> None:
    show.put_json(page.answer)


def _list(pages: list[Page], as_json: bool, none: str) -> None:
    if as_json:
        show.put_json(*(page.answer for page in pages))
        return
    rows = []
    for page in pages:
        job, status = (show.in_one_line(value, _MOST_CELL) for value in (show.job(page), page.payload.get("status")))
        rows.append([page.handle, show.age(page), show.state(page), job, status, show.summary(page)])
    show.put_lines(show.table(["ID", "AGE", "STATE", "JOB", "STATUS", "MESSAGE"], rows) if rows else [none])


def _last_seen(moment: datetime | None) -> str:
    if moment is None:
        return "its mailbox was never read"
    return f"it was read {in_words(max(0, round((datetime.now(UTC) - moment).total_seconds())))} ago"


def _payload(**fields: object) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def _message(message: str | None, needed: bool) -> str | None:
    """The text to send: the argument, or standard input. None: nothing is said, and it is not needed."""
    if message is not None and message != "-":
        return _text(message)
    if message is None and os.isatty(0):
        if needed:
            raise click.UsageError("what is to be sent? Give a MESSAGE, or text on standard input")
        return None
    try:
        if not select.select([0], [], [], _QUIET_SECONDS)[0]:
            note('the message is read from standard input, where nothing comes; give MESSAGE, or "" for none')
        with open(0, "rb", closefd=False) as standard_input:
            text = standard_input.read().decode(errors="replace")
    except OSError as error:
        raise click.UsageError(f"standard input can't be read: {error.strerror}") from None
    return text if text or needed else None


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"with --json the message must be a JSON object, and it is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise click.UsageError('with --json the message must be a JSON object, as in \'{"status": "success"}\'')
    if "uuid" in value:
        raise click.UsageError("uuid can't be a field; who is paged is said with --to")
    return value
