"""Pages on disk. Knows nothing of HTTP."""

from pagermcp.spool.janitor import Janitor
from pagermcp.spool.mailbox import DeliveredMaybe, Mailbox, MailboxFull
from pagermcp.spool.page import BadPage, Page
from pagermcp.spool.sending import KeyReused, Options, Sent, send, sending
from pagermcp.spool.spool import Busy, Spool, SpoolFull, SpoolRefused

__all__ = [
    "BadPage",
    "Busy",
    "DeliveredMaybe",
    "Janitor",
    "KeyReused",
    "Mailbox",
    "MailboxFull",
    "Options",
    "Page",
    "Sent",
    "Spool",
    "SpoolFull",
    "SpoolRefused",
    "send",
    "sending",
]
