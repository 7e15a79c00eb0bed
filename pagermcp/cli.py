"""The `pagermcp` command: a thin function a command."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import click

import pagermcp
from pagermcp.server import ServeFailed
from pagermcp.server import serve as run_relay
from pagermcp.settings import InvalidSetting, Settings


@click.group(invoke_without_command=True)
@click.version_option(pagermcp.__version__, prog_name="pagermcp")
@click.pass_context
def main(context: click.Context) -> None:
    """A pager and relay: anything that can POST pages a mailbox, and whoever waits there wakes at once.

    Without a command it does what MODE says: serve."""
    if context.invoked_subcommand is None:
        mode = os.environ.get("MODE") or "server"
        if mode != "server":
            raise _WrongSetting(f"MODE={mode!r}: must be server")
        _serve({})


def _setting_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for field in reversed(dataclasses.fields(Settings)):
        rule = field.metadata
        default = f"; default {field.default}" if field.default != "" else ""
        function = click.option(
            f"--{field.name.replace('_', '-')}",
            metavar="|".join(rule["choices"]) or ("NUMBER" if isinstance(field.default, int) else "TEXT"),
            help=f"{rule['reason']}  [{rule['variable']}{default}]",
        )(function)
    return function


@main.command()
@_setting_options
def serve(**options: str | None) -> None:
    """Run the relay. Each option can also be set by the variable named behind it.

    \b
    pagermcp serve
    pagermcp serve --port 8081 --data-dir /var/lib/pagermcp
    """
    _serve(options)


def _serve(options: dict[str, str | None]) -> None:
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
