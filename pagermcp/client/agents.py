"""The commands behind the plugins for agents: the MCP server, the hooks, and what installs them."""

import click

from pagermcp.client.commands import COMMANDS, WRONG_CALL, command, fail, note, url_option
from pagermcp.client.session import make_session, session_file

__all__ = ["COMMANDS"]  # with those from here

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
    except ModuleNotFoundError as error:
        fail(f"this needs the MCP SDK, and there is no module {error.name}: pip install '{_SDK}'", WRONG_CALL)
    if make_mailbox:
        make_session(session_file(), note)
    run(url, note)
