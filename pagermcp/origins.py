"""Where a request comes from: the address by which limits tell clients apart.

A client can write into X-Forwarded-For what he likes, and each proxy adds at the right whom it got it from. So it is
read from the right, and only as long as who wrote it is one of our own proxies.
"""

import functools
import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_CLIENT_BITS = 64  # of an IPv6 address; with the others a client does what he likes


def networks_in(text: str) -> list[Network]:
    """The networks, or single addresses, in a text with commas. Raises ValueError."""
    try:
        return [_network(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ValueError(f"must be addresses or networks, as in 127.0.0.1,10.0.0.0/8: {error}") from None


def _network(text: str) -> Network:
    network = ipaddress.ip_network(text)
    mapped = getattr(network.network_address, "ipv4_mapped", None)  # such an address is read as the one in it, below
    return ipaddress.ip_network((mapped, network.prefixlen - 96)) if mapped else network


class Origins:
    """Tells clients apart. proxies: those whose X-Forwarded-For is believed, as `networks_in` reads them.

    While there are none, nobody on this machine is counted: it may be a proxy, behind which all would be one."""

    def __init__(self, proxies: str) -> None:
        self._proxies = networks_in(proxies)

    def of(self, peer: str, forwarded: str = "") -> str | None:
        """What a request is counted by, that came from this address with these X-Forwarded-For; None if by nothing."""
        address = _parsed(peer)
        hops = forwarded.split(",") if forwarded else []
        while hops and self._is_proxy(address):
            hop = _parsed(hops.pop())
            if hop is None:  # no address: the proxy that wrote it stands for its clients
                break
            address = hop
        if address is None or (address.is_loopback and not self._proxies):
            return None
        if address.version == 4:
            return str(address)
        return str(ipaddress.IPv6Network((int(address), _CLIENT_BITS), strict=False))

    def of_connection(self, peer: str) -> str | None:
        """The same for a connection, of which a proxy may have as many as it needs."""
        return None if self._is_proxy(_parsed(peer)) else self.of(peer)

    def _is_proxy(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._proxies)


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> Address | None:
    """An address as proxies write it: perhaps in brackets, perhaps with a port."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
