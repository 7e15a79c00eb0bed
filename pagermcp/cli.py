"""The `pagermcp` command: a thin function a command."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import get_completion_class

import pagermcp
from pagermcp.settings import InvalidSetting, Settings

EXIT_CODES = """\b
Exit codes:
  0   done
  1   nothing there: no page (wait), no such process, doctor found something
  2   wrong call, or no mailbox
  3   no relay answers
  4   address missing or not allowed to (401, 403)
  5   no such page (404)
  6   the lease is lost, or another conflict (409, 422)
  7   too large (413)
  8   the mailbox is full, or another limit is met (429)
  9   trouble in the relay (5xx)
  10  refused otherwise
  11  the output can't be written
run exits as its command does: 126 can't be run, 127 not found,
128+n killed by signal n. send and run: 0 when the page is kept.
"""


class _Group(click.Group):
    """The relay does not load the client, nor the client the relay; what is for the operator only `spool` loads."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [*_client_commands(), *super().list_commands(context), "spool"]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name == "spool":
            from pagermcp.operator.commands import spool

            return spool
        return super().get_command(context, name) or _client_commands().get(name)


def _client_commands() -> dict[str, click.Command]:
    from pagermcp.client.agents import COMMANDS

    return COMMANDS


@click.group(
    cls=_Group,
    invoke_without_command=True,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(pagermcp.__version__, prog_name="pagermcp")
@click.pass_context
def main(context: click.Context) -> None:
    """A pager and relay: anything that can POST pages a mailbox, and whoever waits there wakes at once.

    Without a command it does what MODE says: server (the default) is serve, client is mcp, with
    a mailbox for this folder.

    \b
    pagermcp serve                       # on the relay's machine
    pagermcp number                      # in a project: the number to hand out
    pagermcp run -- make -j4             # page that mailbox when make has ended
    pagermcp wait --ack                  # wait there for a page
    """
    if os.environ.get("NO_COLOR"):
        context.color = False
    if context.invoked_subcommand is None:
        mode = os.environ.get("MODE") or "server"
        if mode == "server":
            _serve({})
        elif mode == "client":
            _client_commands()["mcp"].main(["--make-mailbox"], "pagermcp")
        else:
            raise _WrongSetting(f"MODE={mode!r}: must be server or client")


def _setting_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for field in reversed(dataclasses.fields(Settings)):
        rule = field.metadata
        if rule["secret"]:
            continue
        default = f"; default {field.default}" if field.default != "" else ""
        function = click.option(
            f"--{field.name.replace('_', '-')}",
            metavar="|".join(rule["choices"]) or ("NUMBER" if isinstance(field.default, int) else "TEXT"),
            help=f"{rule['reason']}  [{rule['variable']}{default}]",
        )(function)
    return function


_SECRETS = [
    f"{field.metadata['variable']}: {field.metadata['reason']}"
    for field in dataclasses.fields(Settings)
    if field.metadata["secret"]
]


@main.command(epilog=f"Only as a variable, since whoever lists processes sees options: {' '.join(_SECRETS)}")
@_setting_options
def serve(**options: str | None) -> None:
    """Run the relay. Each option can also be set by the variable named behind it.

    \b
    pagermcp serve
    pagermcp serve --port 8081 --data-dir /var/lib/pagermcp
    """
    _serve(options)


@main.command(short_help="What makes a shell complete commands and options.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes a shell complete pagermcp's commands and options.

    \b
    pagermcp completion bash >>~/.bashrc
    pagermcp completion zsh >>~/.zshrc
    pagermcp completion fish >~/.config/fish/completions/pagermcp.fish
    """
    kind = get_completion_class(shell)
    assert kind  # what the choice allows, click has
    try:
        click.echo(kind(main, {}, "pagermcp", "_PAGERMCP_COMPLETE").source())
    except OSError as error:
        click.echo(f"pagermcp: the output can't be written: {error.strerror}", err=True)
        os._exit(11)  # what is still in the buffer can't be written either


def _serve(options: dict[str, str | None]) -> None:
    from pagermcp.server import ServeFailed
    from pagermcp.server import serve as run_relay

    try:
        settings = Settings.read(os.environ, options)
    except InvalidSetting as error:
        raise _WrongSetting(str(error)) from None
    try:
        run_relay(settings, os.environ.get("PAGERMCP_CALLED_AS", "pagermcp serve"))
    except ServeFailed as error:
        raise click.ClickException(str(error)) from None


class _WrongSetting(click.ClickException):
    """One line on standard error, and the exit code for a wrong call."""

    exit_code = 2
