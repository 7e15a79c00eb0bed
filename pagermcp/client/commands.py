"""The client's commands: what `pagermcp send`, `run`, `wait` and the others take, print, and exit with."""

import contextlib
import dataclasses
import json
import math
import os
import select
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, NoReturn

import click

from pagermcp import address
from pagermcp.client import doctor as health
from pagermcp.client import runner, show
from pagermcp.client.listen import CannotRun, Commands, Listener
from pagermcp.client.outbox import Kept, Outbox, Outgoing, deliver
from pagermcp.client.relay import BadCall, NotARelay, Page, Refused, Relay, RelayError, Unreachable
from pagermcp.client.report import Report
from pagermcp.client.session import NoSession, make_session, session_file
from pagermcp.durations import in_words, seconds_in

NOTHING, WRONG_CALL, UNREACHABLE, TROUBLE, OTHER, UNWRITABLE = 1, 2, 3, 9, 10, 11
_REFUSED = {401: 4, 403: 4, 404: 5, 409: 6, 422: 6, 413: 7, 429: 8}
_MOST_CELL = 24
_BOUNDS = {"delay": (0, math.inf), "timeout": (0, math.inf), "lease": (1, 43200), "seconds": (0, 240)}
_QUIET_SECONDS = 2.0
_BESIDE_SECONDS = 5.0  # for how long a command that sends a page also sends what is in the outbox


def fail(why: object, code: int) -> NoReturn:
    """Say why in one line on standard error, and exit."""
    _note(str(why))
    sys.exit(code)


class _Command(click.Command):
    """A command whose failures are exit codes."""

    def invoke(self, context: click.Context) -> Any:
        while (descriptor := os.open(os.devnull, os.O_RDONLY)) <= 2:
            pass  # one that our caller has closed must not become a connection, into which we would print
        os.close(descriptor)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends us as it ends others
        try:
            return super().invoke(context)
        except (NoSession, BadCall, address.InvalidAddress) as error:
            fail(error, WRONG_CALL)
        except (Unreachable, NotARelay) as error:
            fail(error, UNREACHABLE)
        except Refused as error:
            fail(error, _REFUSED.get(error.status, TROUBLE if error.status >= 500 else OTHER))
        except show.Unwritable as error:
            fail(error, UNWRITABLE)


def _duration(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    least, most = _BOUNDS.get(str(option.name), (0.001, math.inf))
    seconds = seconds_in(value)
    if seconds is None or not least <= seconds:
        raise click.BadParameter(f"{value!r} is no time, as in 90, 90s, 30m, 2h or 7d")
    if seconds > most:
        raise click.BadParameter(f"must be at most {in_words(most)}")
    return seconds


def _key(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is not None and (not 0 < len(value) <= 255 or "," in value or not value.isprintable()):
        raise click.BadParameter("must have 1 to 255 characters that can be printed, and no comma")
    return value


def _number(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    try:
        return value and address.number_of(address.parse(value))
    except address.InvalidAddress:
        raise click.BadParameter("is no UUID; the number to page is what `pagermcp number` prints there") from None


def _said(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    return None if value is None else _text(value)


def _named(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    fields = {}
    for value in values:
        name, equals, text = _text(value).partition("=")
        if not name or not equals or name == "uuid":
            raise click.BadParameter(f"{value!r} is not NAME=VALUE; uuid can't be a name")
        fields[name] = text
    return fields


COMMANDS: dict[str, click.Command] = {}


def _command(*shared: click.Parameter, **settings: Any) -> Callable[[Callable[..., None]], click.Command]:
    """A command of the client, with these parameters behind its own."""

    def register(function: Callable[..., None]) -> click.Command:
        command = click.command(cls=_Command, **settings)(function)
        command.params += shared
        COMMANDS[str(command.name)] = command
        return command

    return register


_url = click.Option(["--url"], metavar="URL", help="The relay.  [PAGER_URL, SERVER_URL; default http://127.0.0.1:8080]")
_json = click.Option(["--json", "as_json"], is_flag=True, help="For a program: a line of JSON for each.")
_to = click.Option(["--to"], metavar="NUMBER", callback=_number, help="Whose mailbox, instead of the own one.")
_outbox = click.Option(["--outbox/--no-outbox"], default=True, help="Keep a page that no relay takes now.  [outbox]")
_job_id = click.Option(["--job-id"], metavar="ID", callback=_said, help="JOB_ID of the page: which job it was.")
_project = click.Option(["--project"], metavar="NAME", callback=_said, help="PROJECT of the page.")
_fields = click.Option(
    ["--field", "fields"], metavar="NAME=VALUE", multiple=True, callback=_named, help="One more; may be given again."
)
_expect = click.Option(
    ["--expect"], metavar="TIME", callback=_duration, help="If it lasts longer, it is paged as lost."
)
_ids = click.Argument(["ids"], metavar="ID...", nargs=-1, required=True)


@_command()
@click.option("--key", is_flag=True, help="Print the key, with which the mailbox can be read.")
def number(key: bool) -> None:
    """Print this folder's number, by which others page it. Its key is made when there is none, in .pager_session.

    \b
    pagermcp number
    mv page.json spool/new/$(pagermcp number)/
    """
    made = make_session(session_file(), _note)
    if key and address.is_number(made):
        fail(f"{session_file()} holds a number, and its key is elsewhere", WRONG_CALL)
    show.put(f"{made if key else address.number_of(made)}\n".encode())


@_command(_job_id, _project, _fields, _to, _outbox, _url)
@click.argument("message", required=False)
@click.option("--json", "as_json", is_flag=True, help="The message is a JSON object, and so is what is printed.")
@click.option("--status", metavar="TEXT", callback=_said, help="status of the page, as success, failed, question.")
@click.option("--delay", metavar="TIME", callback=_duration, help="It waits for its reader only after so long.")
@click.option("--expires", metavar="TIME", callback=_duration, help="Unread for so long, it goes to the archive.")
@click.option("--replace", metavar="KEY", callback=_key, help="It replaces the waiting page with the same key.")
@click.option("--run", metavar="KEY", callback=_key, help="It reports about this run (a dead-man's switch).")
@click.option(
    "--expect", metavar="TIME", callback=_duration, help="With --run: unless it reports again in time, it is lost."
)
@click.option("--idempotency-key", metavar="KEY", callback=_key, help="Sent again with the same key it comes once.")
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
    pagermcp send --to 0f9d2c1e-9ae8-812c-839c-75714745f412 --status question "Which data set first?"
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
        payload = extra if text is None else _payload(JOB_ID=job_id, status=status, message=text) | extra
    relay = Relay(to, url)
    page = Outgoing(relay.url, relay.number, payload, idempotency_key or str(uuid.uuid4()), time.time(), **options)
    try:
        sent = deliver(page, Outbox() if outbox else None, _note)
    except Kept as why:
        _say_kept(why)
        if as_json:
            show.put(show.json_line({"accepted": False, "kept": True}))
        return
    if as_json:
        show.put(show.json_line(sent.answer))
    elif sent.id:
        show.put(f"{show.in_one_line(sent.id)}\n".encode())
    if os.isatty(2):
        there = "its reader is waiting" if sent.waiters else f"nobody waits there now; {_last_seen(sent.last_read)}"
        click.echo(f"sent to {sent.number}: {there}", err=True)
    if outbox:
        _flush_others(relay.url)


@_command(_job_id, _project, _fields, _to, _expect, _outbox, _url, context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--message", metavar="TEXT", callback=_said, help="What the page says; otherwise how the command ended.")
@click.option("--tail", metavar="N", type=click.IntRange(0), default=10, help="Send the last N lines of output (10).")
@click.option("--show-command", is_flag=True, help="Send the command line too. It may hold secrets.")
def run(
    command: tuple[str, ...],
    message: str | None,
    tail: int,
    show_command: bool,
    **options: Any,
) -> None:
    """Run a command as if this were not there, send a page when it has ended, and exit with its exit code.

    \b
    pagermcp run -- make -j4
    pagermcp run --job-id backup --expect 2h -- ./backup.sh /home
    pagermcp run --to 0f9d2c1e-9ae8-812c-839c-75714745f412 --tail 30 -- pytest
    """
    report = _report("run", **options)

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
        report.keep(told)

    with runner.run(list(command), tail, report.begin, keep) as ended:
        if ended.error:
            _note(f"{command[0]}: {ended.error}")
        if ended.lost:
            _note(f"the output could not be written: {ended.lost}")
        _send(report)
    if ended.interrupted:
        os.kill(os.getpid(), signal.SIGINT)  # as the command did: that is how a shell knows that a loop is to end
    sys.exit(ended.exit_code)


@_command(_job_id, _project, _fields, _to, _expect, _outbox, _url)
@click.argument("pid", type=click.IntRange(1, (1 << 31) - 1))
@click.option("--message", metavar="TEXT", callback=_said, help="What the page says; otherwise that it has ended.")
def pid(pid: int, message: str | None, **options: Any) -> None:
    """Send a page when a process that runs already has ended, whosever it is. How it ended can't be known.

    \b
    pagermcp pid 1234 --message "the upload is through"
    pagermcp pid $(pgrep -o rsync) --expect 6h
    """
    report = _report(str(pid), **options)
    began = time.monotonic()
    try:
        runner.wait_for_process(pid, report.begin)
    except ProcessLookupError:
        fail(f"there is no process {pid}", NOTHING)
    seconds = round(time.monotonic() - began, 3)
    report.keep({"status": "ended", "message": message or f"process {pid} has ended", "seconds": seconds})
    if not _send(report):
        sys.exit(UNREACHABLE)


@_command(_url)
@click.option("--timeout", metavar="TIME", callback=_duration, help="Wait at most so long; 0 only looks.  [for ever]")
@click.option("--max", "most", metavar="N", type=click.IntRange(1, 100), default=1, help="Up to N pages at once (1).")
@click.option("--lease", metavar="TIME", callback=_duration, default="60", help="They are yours for so long (60 s).")
@click.option("--ack", is_flag=True, help="Acknowledge them when they are printed.")
@click.option("--max-age", metavar="TIME", callback=_duration, help="Older pages go to the archive unread.")
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
    if os.isatty(2):
        click.echo(f"waiting for a page to {relay.number}", err=True)
    pages = relay.wait(timeout=timeout, max=most, lease=lease, max_age=max_age)
    if not pages:
        sys.exit(NOTHING)
    _hand_over(relay, pages, ack)
    if not ack and os.isatty(2):
        handles = " ".join(page.handle for page in pages)
        click.echo(f"leased for {in_words(lease)}; when you are done: pagermcp ack {handles}", err=True)


@_command(_url)
@click.option("--exec", "command", metavar="COMMAND", help="A shell command that handles each page, from its input.")
@click.option("--jobs", metavar="N", type=click.IntRange(1, 64), default=1, help="Handle up to N pages at once (1).")
@click.option("--lease", metavar="TIME", callback=_duration, default="60", help="Renewed while it is handled (60 s).")
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
    if os.isatty(2):
        click.echo(f"listening for pages to {relay.number}", err=True)
    if command:
        commands = Commands(command, _note)
        try:
            Listener(relay, commands.handle, _note, jobs=jobs, lease=lease).run(commands.end)
        except CannotRun as error:
            fail(error, OTHER)
    else:
        Listener(relay, _print, _note, jobs=1, lease=lease).run()


@_command(_json, _url)
def inbox(as_json: bool, url: str | None) -> None:
    """Look at the pages that wait, are leased, or are to come. Takes none.

    \b
    pagermcp inbox
    pagermcp inbox --json | jq -r .payload.message
    """
    relay = Relay(url=url)
    pages = [page for state in ("leased", "waiting", "scheduled") for page in relay.pages(state, limit=1000)]
    _list(pages, as_json, "no pages")


@_command(_json, _url)
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


@_command(_json, _url, name="show")
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
                show.put(show.json_line(page.answer) if as_json else _lines(show.whole(page)))
                return
    fail(f"page {id} is on the move; try again", _REFUSED[404])


@_command(_ids, _url)
def ack(ids: tuple[str, ...], url: str | None) -> None:
    """Acknowledge leased pages, by the handle that `wait` and `inbox` show.

    \b
    pagermcp ack 1795981500901952 1795981500901952.2
    """
    Relay(url=url).ack(*ids)


@_command(_ids, _url)
def replay(ids: tuple[str, ...], url: str | None) -> None:
    """Let copies of archived or dead pages wait again. Prints their new ids.

    \b
    pagermcp replay 1795981500901952
    """
    try:
        show.put(_lines(Relay(url=url).replay(*ids)))
    except Refused as error:
        show.put(_lines(copy["id"] for copy in error.answer.get("replayed", [])))
        raise


@_command(_to, _json, _url)
@click.argument("id")
def receipt(id: str, to: str | None, as_json: bool, url: str | None) -> None:
    """Say where a page is: in the own mailbox, or in the one it was sent to.

    \b
    pagermcp receipt 1795981500901952
    pagermcp receipt --to 0f9d2c1e-9ae8-812c-839c-75714745f412 1795981500901952
    """
    found = Relay(to, url).receipt(id)
    show.put(show.json_line(found) if as_json else _lines(show.fields(found)))


@_command(_json)
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
        done = 0

        def progress() -> None:
            nonlocal done
            done += 1
            _progress(f"{done} of {len(waiting)}", end=done == len(waiting))

        flushed = box.flush(waiting, progress=progress)
    except OSError as error:
        fail(f"the outbox {box.folder} can't be used: {error.strerror}", TROUBLE)
    if as_json:
        counts = {name: len(getattr(flushed, name)) for name in ("sent", "left", "refused")}
        show.put(show.json_line(counts))
    else:
        show.put(f"{flushed}\n".encode())
    if flushed.trouble:
        fail(flushed.trouble, UNREACHABLE if flushed.left else OTHER)


def as_client() -> None:
    """What a bare `pagermcp` does with MODE=client."""
    try:
        make_session(session_file(), _note)
    except NoSession as error:
        fail(error, WRONG_CALL)
    COMMANDS["listen"].main([], "pagermcp")


def _list_outbox(box: Outbox, waiting: list[str], as_json: bool) -> None:
    rows = []
    for path, why in [*((path, "") for path in waiting), *box.set_aside().items()]:
        try:
            page = box.read(path)
        except (OSError, ValueError) as error:
            _note(str(error))
            continue
        payload = page.payload if isinstance(page.payload, dict) else {"message": page.payload}
        if as_json:
            told = {"file": path, "url": page.url, "to": page.to, "payload": payload}
            show.put(show.json_line(told | ({"refused": why} if why else {})))
        what = "refused: " + why if why else in_words(max(0, round(time.time() - page.created)))
        rows.append([show.in_one_line(cell) for cell in (what, page.to, page.url, payload.get("message"))])
    if not as_json:
        titles = ["AGE", "TO", "RELAY", "MESSAGE"]
        show.put(_lines(show.table(titles, rows) if rows else ["the outbox is empty"]))


@_command(_json, _url)
@click.option(
    "--wait", "seconds", metavar="TIME", callback=_duration, default="70", help="How long a wait is tested (70 s)."
)
@click.pass_context
def doctor(context: click.Context, seconds: float, as_json: bool, url: str | None) -> None:
    """Find out whether pages would reach this machine, and what to do if not. Takes 70 s for a long wait.

    \b
    pagermcp doctor
    pagermcp doctor --wait 0
    """
    colours = {"ok": "green", "note": "yellow", "bad": "red"}
    is_bad = False
    for finding in health.examine(Relay(url=url), seconds, _progress):
        is_bad = is_bad or finding.verdict == "bad"
        if as_json:
            show.put(show.json_line(dataclasses.asdict(finding)))
            continue
        _progress("")
        verdict = finding.verdict.ljust(4)
        if os.isatty(1) and context.color is not False:
            verdict = click.style(verdict, fg=colours[finding.verdict])
        remedy = [f"      -> {show.in_one_line(finding.remedy)}"] if finding.remedy else []
        show.put(_lines([f"{verdict}  {show.in_one_line(finding.what)}", *remedy]))
    if is_bad:
        sys.exit(NOTHING)


def _progress(text: str, end: bool = False) -> None:
    if os.isatty(2):
        click.echo(f"\r\x1b[2K{text}", nl=end, err=True)


def _note(text: str) -> None:
    """Say something to people, on standard error. That nobody reads it is no reason to fail."""
    with contextlib.suppress(OSError):
        click.echo(f"pagermcp: {show.in_one_line(text)}", err=True)


def _say_kept(why: Kept) -> None:
    _note(f"not sent yet: {why}. It is kept; send it with: pagermcp outbox flush")


def _report(
    name: str,
    url: str | None,
    to: str | None,
    job_id: str | None,
    project: str | None,
    fields: dict[str, str],
    expect: float | None,
    outbox: bool,
) -> Report:
    """The report that these options ask for; name: JOB_ID, if they don't say."""
    fixed = _payload(PROJECT=project, JOB_ID=job_id or name)
    return Report(Relay(to, url), fixed, fields, expect, Outbox() if outbox else None)


def _send(report: Report) -> bool:
    """Send the report of something that has ended, and say what went wrong; whether the page is sent, or kept."""
    try:
        report.send(_note)
    except Kept as why:
        _say_kept(why)
    except (RelayError, BadCall, OSError) as error:
        _note(f"not sent: {error}")
        return False
    else:
        if report.outbox:
            _flush_others(report.relay.url)
    finally:
        if report.trouble:
            _note(report.trouble)
    return True


def _flush_others(url: str) -> None:
    """The relay at this URL takes pages, so it may take those that it could not before."""
    with contextlib.suppress(OSError):  # `pagermcp outbox` says it
        flushed = Outbox().flush(url=url, seconds=_BESIDE_SECONDS)
        if flushed.sent or flushed.refused:
            trouble = f"; {flushed.trouble}" if flushed.trouble else ""
            _note(f"from the outbox: {flushed}{trouble}")


def _hand_over(relay: Relay, pages: list[Page], acknowledge: bool) -> None:
    """Print pages, and acknowledge them when they are printed; what could not be printed is given back."""
    try:
        show.put(b"".join(show.json_line(page.answer) for page in pages))
    except show.Unwritable:
        with contextlib.suppress(RelayError):  # then they come back when their lease ends
            relay.release(*pages)
        raise
    if acknowledge:
        relay.ack(*pages)


def _print(page: Page) -> bool:
    show.put(show.json_line(page.answer))
    return True


def _list(pages: list[Page], as_json: bool, none: str) -> None:
    if as_json:
        show.put(b"".join(show.json_line(page.answer) for page in pages))
        return
    rows = []
    for page in pages:
        job, status = (show.in_one_line(page.payload.get(name), _MOST_CELL) for name in ("JOB_ID", "status"))
        rows.append([page.handle, show.age(page), show.state(page), job, status, show.summary(page)])
    show.put(_lines(show.table(["ID", "AGE", "STATE", "JOB", "STATUS", "MESSAGE"], rows) if rows else [none]))


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


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
            _note('the message is read from standard input, where nothing comes; give MESSAGE, or "" for none')
        with open(0, "rb", closefd=False) as standard_input:
            text = standard_input.read().decode(errors="replace")
    except OSError as error:
        raise click.UsageError(f"standard input can't be read: {error.strerror}") from None
    return text if text or needed else None


def _text(argument: str) -> str:
    """An argument as text, though it may have bytes that are no UTF-8."""
    return os.fsencode(argument).decode(errors="replace")


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"not JSON: {error}") from None
    if isinstance(value, dict) and "uuid" in value:
        raise click.UsageError("uuid can't be a field; who is paged is said with --to")
    if not isinstance(value, dict):
        raise click.UsageError('a page is a JSON object, as in \'{"status": "success"}\'')
    return value
