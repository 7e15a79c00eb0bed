"""Pages on disk. Knows nothing of HTTP."""

from pagermcp.spool.janitor import Janitor
from pagermcp.spool.mailbox import DeliveredMaybe, Mailbox, MailboxFull
from pagermcp.spool.page import BadPage, Page
from pagermcp.spool.spool import Spool, SpoolFull, SpoolRefused

__all__ = [
    "BadPage",
    "DeliveredMaybe",
    "Janitor",
    "Mailbox",
    "MailboxFull",
    "Page",
    "Spool",
    "SpoolFull",
    "SpoolRefused",
]
