"""What the views work with, one object for the application."""

import dataclasses
import threading
from typing import cast

from flask import current_app

from pagermcp.settings import Settings
from pagermcp.spool import Janitor, Spool
from pagermcp.waking import Switchboard, Watcher


@dataclasses.dataclass(frozen=True)
class Services:
    """waits and writes bound how many requests do so at once, so that a thread is always left for the others."""

    settings: Settings
    spool: Spool
    switchboard: Switchboard
    watcher: Watcher
    janitor: Janitor
    waits: threading.Semaphore
    writes: threading.Semaphore


def services() -> Services:
    return cast(Services, current_app.extensions["pagermcp"])
