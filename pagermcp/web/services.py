"""What the views work with, one object for the application."""

import dataclasses
from typing import cast

from flask import current_app

from pagermcp.limits import Limits
from pagermcp.settings import Settings
from pagermcp.spool import Janitor, Spool
from pagermcp.waking import Switchboard, Watcher


@dataclasses.dataclass(frozen=True)
class Services:
    settings: Settings
    spool: Spool
    switchboard: Switchboard
    watcher: Watcher
    janitor: Janitor
    limits: Limits = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "limits", Limits(self.settings))


def services() -> Services:
    return cast(Services, current_app.extensions["pagermcp"])
