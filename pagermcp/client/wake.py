"""What every way of waking has in common: a page counts as received when it is acknowledged after the hand-over, and a
page by `pagermcp doctor --wake` is then answered, which shows that this very client has received it."""

import contextlib
import re
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagermcp import address
from pagermcp.client.relay import Page, Refused, Relay, RelayError

_PATIENCE_SECONDS = 1.5
_MOST_AT_ONCE = 100  # that the relay takes
_NONCE = re.compile("[0-9a-f]{16,64}", re.ASCII)


@dataclass(frozen=True)
class Probe:
    """A question whether a client wakes. reply: the number to which the answer goes; nonce: what is in it."""

    reply: str
    nonce: str

    @classmethod
    def make(cls, reply: str) -> "Probe":
        """A new one."""
        return cls(reply, secrets.token_hex(16))

    @classmethod
    def read(cls, value: object) -> "Probe | None":
        """A probe as it stands in a page's field `probe`; None when it is none."""
        if not isinstance(value, Mapping):
            return None
        reply, nonce = value.get("reply"), value.get("nonce")
        with contextlib.suppress(address.InvalidAddress):
            if isinstance(reply, str) and isinstance(nonce, str) and _NONCE.fullmatch(nonce):
                return cls(reply, nonce) if address.is_number(address.parse(reply)) else None
        return None

    def payload(self, client: str) -> dict[str, Any]:
        """The page that asks this client."""
        what = f"pagermcp doctor asks whether pages wake {client}. There is nothing to do but to acknowledge this page."
        return {"status": "probe", "message": what, "probe": {"reply": self.reply, "nonce": self.nonce}}

    def answer(self, client: str) -> dict[str, Any]:
        """The page by which this client answers."""
        return {"status": "probe", "nonce": self.nonce, "client": client}


@dataclass(frozen=True)
class Handed:
    """A page that was handed over and is to be acknowledged."""

    handle: str
    probe: Probe | None = None

    @classmethod
    def over(cls, page: Page) -> "Handed":
        """What is to be known of a page that is handed over."""
        return cls(page.handle, Probe.read(page.payload.get("probe")))


def acknowledge(relay: Relay, handed: Sequence[Handed], client: str) -> None:
    """Acknowledge pages that a client has received. client: `opencode`, `claude`, `codex` or `mcp`. Raises as
    `Relay.ack`."""
    refused = None
    done: list[str] = []
    for start in range(0, len(handed), _MOST_AT_ONCE):
        handles = [one.handle for one in handed[start : start + _MOST_AT_ONCE]]
        try:
            relay.ack(*handles)
            done += handles
        except Refused as error:
            refused = error
            done += error.answer.get("acknowledged", ())
    for probe in [one.probe for one in handed if one.probe and one.handle in done][:1]:
        # the first: anybody can send many, and each takes its time
        with contextlib.suppress(RelayError):  # then the doctor hears nothing, and says so
            Relay(uuid.UUID(probe.reply), relay.url, tries=1, patience=_PATIENCE_SECONDS).send(probe.answer(client))
    if refused:
        raise refused
