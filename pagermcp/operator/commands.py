"""The commands of `pagermcp spool`: what they take, print, and exit with."""

import collections
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from pagermcp import address
from pagermcp.client import show
from pagermcp.client.commands import NOTHING, TROUBLE, WRONG_CALL, Command, fail, note, time_option
from pagermcp.operator import check as checking
from pagermcp.operator import export as exporting
from pagermcp.operator import purge as purging
from pagermcp.operator import stats as counting
from pagermcp.operator.beside import Beside, OtherFormat, number_in
from pagermcp.operator.intake import Intake, Refused
from pagermcp.operator.repair import repair
from pagermcp.settings import InvalidSetting, Settings
from pagermcp.spool import Busy, SpoolFull, SpoolRefused

_ROUNDS = 4  # of repairs, since what is mended lets more be seen
_HASH = re.compile(r"[0-9a-f]{64}\.(json|pending)", re.ASCII)
_ADDRESS = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.ASCII)
_NAME = re.compile(r"[^/\s()]+")


class _Command(Command):
    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(context, args)
        except click.UsageError as error:
            raise _without_keys(error) from None

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except (InvalidSetting, SpoolRefused) as error:
            fail(error, WRONG_CALL)
        except SpoolFull as error:
            fail(f"{error}: make room there", TROUBLE)
        except Busy as error:
            fail(error, TROUBLE)
        except OSError as error:
            spool = context.meta.get("spool")
            fail(spool.explain(error) if spool else error, TROUBLE)


class _Group(click.Group):
    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(context, args)
        except click.UsageError as error:
            raise _without_keys(error) from None


def _without_keys(error: click.UsageError) -> click.UsageError:
    return click.UsageError(address.redact(error.format_message()), error.ctx)


def _open(data_dir: str | None, writes: bool) -> Beside:
    spool = Beside(Settings.read(os.environ, {"data_dir": data_dir}), writes=writes)
    click.get_current_context().meta["spool"] = spool
    return spool


def _number(text: str) -> str:
    try:
        return number_in(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_data_dir = click.option("--data-dir", metavar="FOLDER", help="The spool.  [DATA_DIR; default ./spool]")
_json = click.option("--json", "as_json", is_flag=True, help="For a program: as JSON.")


@click.group(cls=_Group, short_help="Look into a spool, mend it, move mailboxes.")
def spool() -> None:
    """Look into the spool on this machine, mend it, and move its mailboxes. All of it may run beside a relay.

    Mailboxes are named by their numbers. Root becomes the user to whom the spool belongs.

    \b
    pagermcp spool check --repair
    pagermcp spool stats
    pagermcp spool export 0f9d2c1e-9ae8-812c-839c-75714745f412 >mailbox.jsonl
    pagermcp spool purge --older-than 30d
    """


def _command(short_help: str, name: str | None = None) -> Callable[[Callable[..., None]], click.Command]:
    return lambda function: spool.command(name, cls=_Command, short_help=short_help)(_data_dir(function))


@_command("Say what is wrong in it.")
@click.option("--repair", "mends", is_flag=True, help="Mend what can be mended without losing anything.")
def check(mends: bool, data_dir: str | None) -> None:
    """Say what is wrong in the spool: a line for each finding, with its path and what to do.

    --repair deletes no page. It sets modes, moves what is no page to dead/ with the reason, removes the earlier name of
    a page that is in two places, gives one of two pages with the same id another one, clears away what a kill left.

    Exits with 0 when all is well, or mended, and with 1 when something is left to do.

    \b
    pagermcp spool check
    sudo pagermcp spool check --repair --data-dir /var/lib/pagermcp
    """
    try:
        opened = _open(data_dir, writes=True)
    except OtherFormat as error:
        show.put_lines([str(error)])
        sys.exit(NOTHING)
    examination = checking.Examination(opened)
    findings = examination.findings()
    if mends:
        with opened.one_at_a_time():
            for _ in range(_ROUNDS):
                if not _mend(opened, findings):
                    break
                findings = examination.findings()
    show.put_lines(
        f"{_shown(opened, one.path)}: {_shown(opened, one.what)}; {_advice(opened, one)}" for one in findings
    )
    about = f"{examination.mailboxes} mailboxes, {examination.pages} pages"
    note(f"{about}: {len(findings)} found" if findings else f"{about}: nothing is wrong")
    sys.exit(NOTHING if findings else 0)


def _mend(opened: Beside, findings: list[checking.Finding]) -> bool:
    """Mend what can be, and say so; whether anything was."""
    mended = False
    for one in findings:
        try:
            done = repair(opened, one)
        except FileNotFoundError:
            continue  # it has gone
        except (OSError, Busy) as error:
            note(f"{_shown(opened, one.path)} could not be mended: {error}")
            continue
        if done:
            mended = True
            show.put_lines([f"{_shown(opened, one.path)}: {_shown(opened, one.what)}; {_shown(opened, done)}"])
    return mended


def _advice(opened: Beside, finding: checking.Finding) -> str:
    return _shown(opened, finding.remedy) + (", or let --repair do it" if finding.mend else "")


def _shown(opened: Beside, text: str) -> str:
    """A text with names of files in it, none of which harms a terminal; one that is a key is shown as its number."""
    before, root, after = text.rpartition(f"{opened.root}/")
    return show.in_one_line(before + root + _NAME.sub(lambda match: _without_key(match[0]), after))


def _without_key(name: str) -> str:
    """Beside an address, or in a hash, there may be digits with which it looks like another one."""
    return name if _HASH.fullmatch(name) else "".join(map(address.redact, _ADDRESS.split(name)))


@_command("Say how much there is in it.")
@_json
def stats(as_json: bool, data_dir: str | None) -> None:
    """Say how much there is in the spool: pages by state, the fullest mailboxes, the days of the archive.

    \b
    pagermcp spool stats
    pagermcp spool stats --json | jq .pages.waiting.pages
    """
    found = counting.stats(_open(data_dir, writes=False))
    if as_json:
        show.put_json(found)
    else:
        show.put_lines(show.in_one_line(line) if "/" in line else line for line in counting.table(found))


@_command("Write a mailbox as lines of JSON.")
@click.argument("number", type=_number)
def export(number: str, data_dir: str | None) -> None:
    """Write all pages of the mailbox with this NUMBER, archive included, as lines of JSON for `pagermcp spool import`.

    \b
    pagermcp spool export 0f9d2c1e-9ae8-812c-839c-75714745f412 >mailbox.jsonl
    pagermcp spool export 0f9d2c1e-9ae8-812c-839c-75714745f412 | ssh new pagermcp spool import
    """
    opened = _open(data_dir, writes=False)
    if not exporting.exists(opened, number):
        fail(f"nothing in {opened.root} belongs to {number}", NOTHING)
    for line in exporting.export(opened, number):
        show.put(show.json_line(json.loads(line)) if os.isatty(1) else line)


@_command("Take in what export has written.", "import")
def import_(data_dir: str | None) -> None:
    """Take in the lines of `pagermcp spool export` from standard input.

    Nothing is written over, and what is here already is left, so it may be done again. A line that can't be taken in is
    named, and the next one is tried; then it exits with 1.

    \b
    pagermcp spool import <mailbox.jsonl
    """
    opened = _open(data_dir, writes=True)
    with opened.one_at_a_time():
        intake = Intake(opened)
        refused = 0
        try:
            for n, line in enumerate(_lines(3 * opened.max_page_bytes), 1):
                try:
                    if line is None:
                        raise Refused("far too long")
                    if line.strip():
                        intake.take(line)
                except Refused as error:
                    refused += 1
                    note(f"line {n}: {address.redact(str(error))}")
        finally:
            show.put_lines([f"{intake.taken} taken in, {intake.there} were here already, {refused} refused"])
    for number in sorted(intake.unfinished):
        note(f"the last line about {number} is missing, so there may be more of it: export it again")
    sys.exit(NOTHING if refused or intake.unfinished else 0)


def _lines(most: int) -> Iterator[bytes | None]:
    """The lines of standard input; None for one that is too long."""
    with os.fdopen(0, "rb", closefd=False) as source:
        while line := source.readline(most):
            if len(line) < most or line.endswith(b"\n"):
                yield line
                continue
            while len(line) == most and not line.endswith(b"\n"):
                line = source.readline(most)
            yield None


@_command("Delete what is old, or a mailbox, for good.")
@click.option("--older-than", metavar="TIME", type=time_option(0), help="Days that ended so long ago (UTC), as in 30d.")
@click.option("--number", metavar="NUMBER", type=_number, help="One mailbox; without --older-than all of it.")
@click.option("--yes", is_flag=True, help="Do it. Otherwise it is only said what would be deleted.")
def purge(older_than: float | None, number: str | None, yes: bool, data_dir: str | None) -> None:
    """Delete old days of the archive and of dead pages, or all that belongs to one mailbox. Without --yes it only says
    what that would be. The archive of a room is only deleted by its number.

    \b
    pagermcp spool purge --older-than 30d
    pagermcp spool purge --older-than 30d --yes
    pagermcp spool purge --number 0f9d2c1e-9ae8-812c-839c-75714745f412 --yes
    """
    if older_than is None and number is None:
        raise click.UsageError("say what: --older-than 30d, or --number NUMBER")
    opened = _open(data_dir, writes=yes)
    if older_than is None and number is not None:
        parts = purging.mailbox(opened, number)
        if not parts and not exporting.exists(opened, number):
            fail(f"nothing in {opened.root} belongs to {number}", NOTHING)
    else:
        parts = purging.old_days(opened, older_than or 0, number)
    stays = False
    if yes and older_than is None and number is not None:
        stays = not purging.delete_mailbox(opened, number)
    elif yes:
        for part in parts:
            purging.delete(part)
    groups: dict[str, list[purging.Part]] = collections.defaultdict(list)
    for part in parts:
        groups[part.group].append(part)
    verb = "deleted" if yes else "would delete"
    lines = []
    for group, some in groups.items():
        size = counting.in_bytes(sum(part.bytes for part in some))
        lines.append(f"{verb} {group}: {sum(part.pages for part in some)} pages, {size}")
    show.put_lines(lines or [f"{verb} nothing"])
    if stays:
        note("its folder stays, empty, since the relay may be using it, which will remove it (MAILBOX_TTL_DAYS)")
    if parts and not yes:
        note("nothing was deleted: --yes does it")
