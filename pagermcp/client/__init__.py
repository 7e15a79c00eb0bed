"""The client: it knows a relay by HTTP only.

from pagermcp.client import Relay

relay = Relay()                      # PAGER_URL and ./.pager_session, or Relay(key, url)
relay.send("build done", to=number)
for page in relay.listen(lease=60):
    print(page.payload)
    relay.ack(page)
"""

from pagermcp.address import InvalidAddress
from pagermcp.client.relay import BadCall, NotARelay, Page, Refused, Relay, RelayError, Sent, Unreachable
from pagermcp.client.session import NoSession

__all__ = [
    "BadCall",
    "InvalidAddress",
    "NoSession",
    "NotARelay",
    "Page",
    "Refused",
    "Relay",
    "RelayError",
    "Sent",
    "Unreachable",
]
