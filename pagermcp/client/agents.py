"""The commands behind the plugins for agents: the MCP server, the hooks, and what installs them."""

import shutil
import sys

import click

from pagermcp.client import show
from pagermcp.client.commands import COMMANDS, OTHER, WRONG_CALL, command, fail, note, time_option, url_option
from pagermcp.client.relay import Relay
from pagermcp.client.session import make_session, session_file

__all__ = ["COMMANDS"]  # with those from here

_NEXT = {
    "opencode": "restart OpenCode",
    "claude": "restart Claude Code",
    "codex": "restart Codex, look at the hooks by /hooks and trust them",
}
_SDK = "mcp>=2,<3"


@command(url_option, short_help="Serve an agent's tools by MCP, on stdin and stdout.")
@click.option("--make-mailbox", is_flag=True, help="Make this folder's mailbox now, not when it is first used.")
def mcp(make_mailbox: bool, url: str | None) -> None:
    """Serve an agent over standard input and output, by the Model Context Protocol.

    Its tools are wait_for_event, pager_wait, pager_send, pager_inbox, pager_ack, pager_number, room_read and room_post.
    They use this folder's mailbox, or PROJECT_DIR's, and make it when there is none. `pagermcp install` sets it up.

    \b
    pagermcp mcp
    """
    try:
        from pagermcp.client.mcp_server import run
    except ImportError as error:  # it is missing, or older
        fail(f"this needs the MCP SDK ({error}): pip install '{_SDK}'", WRONG_CALL)
    Relay(url=url)  # a URL that is none is said now
    if make_mailbox:
        make_session(session_file(), note)
    run(url, note)


@command(short_help="What the plugins for agents run beside a session.")
@click.argument(
    "what",
    metavar="HOOK",
    type=click.Choice(["session-start", "prompt", "mid-turn", "stop", "rewake", "watch"]),
)
@click.option(
    "--client", type=click.Choice(["claude", "codex"]), default="claude", help="Whose session it is (claude)."
)
@click.option("--hold", metavar="TIME", type=time_option(0), default="0", help="With stop: wait for a page.")
def hook(what: str, client: str, hold: float) -> None:
    """Run a hook of an agent's session, with what the agent says on standard input.

    session-start tells what pages are; prompt and mid-turn hand over those that wait; stop goes on with a turn if one
    waits; rewake waits and exits with 82 when there are pages, which are then on standard error; watch prints a line
    for each. They are silent, and exit with 0, whenever there is no page, no mailbox or no relay.

    \b
    pagermcp hook prompt
    """
    from pagermcp.client.hook import run

    sys.exit(run(what, client, hold))


@command(short_help="Set an agent up so that pages wake it.")
@click.argument("client", type=click.Choice(["opencode", "claude", "codex"]))
@click.option("--dry-run", is_flag=True, help="Show what would be changed, and change nothing.")
@click.option("--uninstall", is_flag=True, help="Take it out again.")
def install(client: str, dry_run: bool, uninstall: bool) -> None:
    """Put the plugin where an agent finds it, and merge what it needs into the agent's configuration. Each change is
    shown.

    \b
    pagermcp install opencode --dry-run
    pagermcp install claude
    pagermcp install codex --uninstall
    """
    from pagermcp.client import install as installer

    try:
        changes = installer.changes(client, uninstall)
        for change in changes:
            show.put_lines(map(show.plain, change.diff()))
        for change in () if dry_run else changes:
            change.make()
    except installer.CannotInstall as why:
        fail(why, OTHER)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", OTHER)
    if not changes:
        show.put_lines(["nothing to change"])
    elif dry_run:
        note("nothing was changed, since this was --dry-run")
    else:
        note("done" if uninstall else f"done; {_NEXT[client]}, and make a mailbox in each project: pagermcp number")
        if not uninstall and not shutil.which("pagermcp"):
            note("an agent calls pagermcp in its shell, too: put it on the PATH, as pipx and uv do")
