"""The commands of `pagermcp spool`: what they take, print, and exit with."""

import collections
import contextlib
import os
import sys
from collections.abc import Callable

import click

from pagermcp import address
from pagermcp.client import show
from pagermcp.client.commands import NOTHING, TROUBLE, WRONG_CALL, Command, fail, note, time_option
from pagermcp.operator import check as checking
from pagermcp.operator import moving
from pagermcp.operator import purge as purging
from pagermcp.operator import stats as counting
from pagermcp.operator.layout import files_of
from pagermcp.settings import InvalidSetting, Settings
from pagermcp.spool import Busy, Spool, SpoolFull, SpoolRefused
from pagermcp.spool.page import WORKERS

_ROUNDS = 2  # of mending, since what is mended lets more be seen


class _Group(click.Group):
    def invoke(self, context: click.Context) -> object:
        try:
            return super().invoke(context)
        except (InvalidSetting, SpoolRefused) as error:
            fail(error, WRONG_CALL)
        except (SpoolFull, Busy) as error:
            fail(error, TROUBLE)
        except OSError as error:
            opened = context.meta.get("spool")
            fail(opened.explain(error) if opened else error, TROUBLE)
        except click.UsageError as error:  # what was typed may have been a key
            raise click.UsageError(address.redact(error.format_message()), error.ctx) from None


@click.group(cls=_Group, short_help="Look into a spool, mend it, move mailboxes.")
def spool() -> None:
    """Look into the spool on this machine, mend it, and move its mailboxes. All of it may run beside a relay.

    Mailboxes are named by their numbers. Root becomes the user to whom the spool belongs.

    \b
    pagermcp spool check --repair
    pagermcp spool stats
    pagermcp spool export 0f9d2c1e-9ae8-812c-839c-75714745f412 >mailbox.jsonl
    pagermcp spool import --data-dir /srv/new/spool <mailbox.jsonl
    pagermcp spool purge --older-than 30d
    """


def _command(short_help: str, name: str | None = None) -> Callable[[Callable[..., None]], click.Command]:
    data_dir = click.option("--data-dir", metavar="FOLDER", help="The spool.  [DATA_DIR; default ./spool]")
    return lambda function: spool.command(name, cls=Command, short_help=short_help)(data_dir(function))


def _open(data_dir: str | None, writes: bool = False) -> Spool:
    """The spool. writes: more is done than to look, and so by its owner, since a relay could not use others' files."""
    settings = Settings.read(os.environ, {"data_dir": data_dir})
    opened = Spool(
        settings.data_dir,
        max_message_bytes=settings.max_message_bytes,
        min_free_bytes=settings.min_free_bytes,
        worker=WORKERS - 1,  # a relay that clears up after one of its workers hardly has this one
        beside=True,
    )
    owner = os.stat(opened.root)
    if os.geteuid() == 0 != owner.st_uid:
        os.setgroups([])
        os.setgid(owner.st_gid)
        os.setuid(owner.st_uid)
    if writes and os.geteuid() != owner.st_uid:
        raise SpoolRefused(f"{opened.root} belongs to uid {owner.st_uid}: run this as that user, or as root")
    click.get_current_context().meta["spool"] = opened
    return opened


def _number(text: str) -> str:
    with contextlib.suppress(address.InvalidAddress):
        if address.is_number(address.parse(text)):
            return str(address.parse(text))
    raise click.BadParameter("a mailbox is named by its number here: what `pagermcp number` prints, and no key")


def _all_of(opened: Spool, number: str) -> list[str]:
    paths = files_of(opened, number)
    if not paths and not os.path.isdir(opened.path("new", number)):
        fail(f"nothing in {opened.root} belongs to {number}", NOTHING)
    return paths


@_command("Say what is wrong in it.")
@click.option("--repair", "mends", is_flag=True, help="Mend what can be mended without losing anything.")
def check(mends: bool, data_dir: str | None) -> None:
    """Say what is wrong in the spool: a line for each finding, with its path and what to do.

    --repair deletes no page. It sets modes, moves what is no page to dead/ with the reason, removes the earlier name of
    a page that is in two places, makes a copy with the same id a page of its own, clears away what a kill left.

    Exits with 0 when all is well, or mended, and with 1 when something is left to do.
    """
    opened = _open(data_dir, writes=True)
    look = checking.examine(opened)
    for _ in range(_ROUNDS if mends and look.found else 0):
        for finding in sorted(look.found):
            with contextlib.suppress(FileNotFoundError, Busy):  # it is gone, or told again below
                if done := checking.mend(opened, finding):
                    _say(opened, finding, done)
        look = checking.examine(opened)
    for finding in sorted(look.found):
        _say(opened, finding, finding.remedy + (", or let --repair do it" if finding.mend else ""))
    if look.found or os.isatty(2):  # to cron all is well when nothing is said
        note(f"{look.mailboxes} mailboxes, {look.pages} pages: {len(look.found) or 'nothing'} found")
    sys.exit(NOTHING if look.found else 0)


def _say(opened: Spool, finding: checking.Finding, more: str) -> None:
    show.put_lines([show.in_one_line(f"{opened.path(finding.path)}: {finding.what}; {more}")])


@_command("Say how much there is in it.")
@click.option("--json", "as_json", is_flag=True, help="For a program: as JSON.")
def stats(as_json: bool, data_dir: str | None) -> None:
    """Say how much there is in the spool: pages by state, the fullest mailboxes, the days of the archive."""
    found = counting.stats(_open(data_dir))
    if as_json:
        show.put_json(found)
    else:
        show.put_lines(map(show.plain, counting.lines(found)))


@_command("Write a mailbox as lines of JSON.")
@click.argument("number", type=_number)
def export(number: str, data_dir: str | None) -> None:
    """Write all files of the mailbox with this NUMBER, archive included, as lines for `pagermcp spool import`."""
    opened = _open(data_dir)
    _all_of(opened, number)
    for line in moving.export(opened, number):
        show.put_json(line)


@_command("Take in what export has written.", "import")
def import_(data_dir: str | None) -> None:
    """Take in the lines of `pagermcp spool export` from standard input.

    Nothing is written over, and what is here already is left, so it may be done again. A line that can't be taken in is
    named, and the next one is tried; then it exits with 1.
    """
    opened = _open(data_dir, writes=True)
    intake, refused = moving.Intake(opened), 0
    with opened.lock("import", poll_seconds=0.05), open(0, "rb", closefd=False) as source:
        try:
            for n, line in enumerate(iter(lambda: source.readline(8 * opened.max_page_bytes), b""), 1):
                try:
                    if line.strip():
                        intake.take(line)
                except moving.Refused as error:
                    refused += 1
                    note(f"line {n}: {address.redact(str(error))}")
        finally:
            show.put_lines([f"{intake.taken} files taken in, {intake.there} were here already, {refused} refused"])
    for number in sorted(intake.unfinished):
        note(f"the last line about {number} is missing, so there may be more of it: export it again")
    sys.exit(NOTHING if refused or intake.unfinished else 0)


@_command("Delete what is old, or a mailbox, for good.")
@click.option(
    "--older-than", metavar="TIME", type=time_option(0, 1e9), help="Days that ended so long ago (UTC), as in 30d."
)
@click.option("--number", metavar="NUMBER", type=_number, help="One mailbox; without --older-than all that it holds.")
@click.option("--yes", is_flag=True, help="Do it. Otherwise it is only said what would be deleted.")
def purge(older_than: float | None, number: str | None, yes: bool, data_dir: str | None) -> None:
    """Delete old days of the archive and of dead pages, or all that a mailbox holds. Without --yes it only says what
    that would be. The archive of a room is only deleted by its number."""
    opened = _open(data_dir, writes=yes)
    if older_than is not None:
        paths = purging.old_files(opened, older_than, number)
    elif number is not None:
        paths = _all_of(opened, number)
    else:
        raise click.UsageError("say what: --older-than 30d, or --number NUMBER")
    count: collections.Counter[str] = collections.Counter()
    for path in paths:
        top, day, *_ = path.removeprefix(f"{opened.root}/").split("/")
        count[f"{top}/{day}" if top in ("archive", "dead") else top] += 1
    if yes and number is not None and older_than is None:
        purging.delete_mailbox(opened, number)
    elif yes:
        purging.delete(opened, paths)
    verb = "deleted" if yes else "would delete"
    show.put_lines([f"{verb} {n} files in {where}" for where, n in count.items()] or [f"{verb} nothing"])
    if paths and not yes:
        note("nothing was deleted: --yes does it")
