"""What one client and one mailbox may use of a relay. In memory, so it is per process, and anew after a restart.

Nothing here grows for ever: what is known of somebody is forgotten as soon as it is as if he had never come.
"""

import threading
import time

from pagermcp.listed import Listed
from pagermcp.origins import Origins
from pagermcp.settings import Settings

_HOUR = 3600.0
_ROUNDING = 0.001
_SWEEP = 1000


class Bucket:
    """A bucket of tokens for everybody: it holds what he may take in an hour, and fills up by and by in an hour.

    Of each bucket only the time is kept at which it will be full, and that only until then. (The library `limits` was
    tried: it has no token bucket, and its memory starts a thread every 10 ms that goes through all keys.)"""

    def __init__(self, per_hour: int) -> None:
        self._seconds_each = _HOUR / per_hour if per_hour else 0
        self._full_at: dict[str, float] = {}  # monotonic
        self._sweep_at = _SWEEP
        self._lock = threading.Lock()

    def take(self, who: str) -> float:
        """Take a token: 0, or in how many seconds there will be one."""
        if not self._seconds_each:
            return 0
        now = time.monotonic()
        with self._lock:
            full_at = max(self._full_at.get(who, 0), now) + self._seconds_each
            if (wait := full_at - now - _HOUR) > _ROUNDING:
                return wait
            self._full_at[who] = full_at
            if len(self._full_at) > self._sweep_at:
                self._full_at = {one: at for one, at in self._full_at.items() if at > now}
                self._sweep_at = 2 * len(self._full_at) + _SWEEP
        return 0

    def __len__(self) -> int:
        """How many buckets are kept."""
        return len(self._full_at)


class Headcount:
    """How many of something everybody has. most: how many he may have; 0 for no limit."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def enter(self, who: str | None) -> int:
        """Count one more; by how many it is too many now. It must leave again. None is not counted."""
        if who is None or not self.most:
            return 0
        with self._lock:
            count = self._counts[who] = self._counts.get(who, 0) + 1
        return max(0, count - self.most)

    def leave(self, who: str | None) -> None:
        if who is None or not self.most:
            return
        with self._lock:
            self._counts[who] -= 1
            if not self._counts[who]:
                del self._counts[who]


class Limits:
    """Those of one relay. Raises ValueError when the file of numbers can't be read."""

    def __init__(self, settings: Settings) -> None:
        self.origins = Origins(settings.trusted_proxy)
        self.posts = Bucket(settings.posts_per_hour)
        self.new_mailboxes = Bucket(settings.new_mailboxes_per_hour)
        self.waits = Headcount(settings.max_connections_per_address)
        self.listed = Listed(settings.numbers_file) if settings.numbers_file else None
