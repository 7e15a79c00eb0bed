"""From "a new file is there" to "the blocked request wakes". Every ring is only a hint; the spool is the truth."""

from pagermcp.waking.sweep import Sweep
from pagermcp.waking.switchboard import Switchboard
from pagermcp.waking.waiter import Waiter
from pagermcp.waking.watch import Watcher, make_watcher

__all__ = ["Sweep", "Switchboard", "Waiter", "Watcher", "make_watcher"]
