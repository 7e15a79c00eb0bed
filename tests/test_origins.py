"""By which address limits tell clients apart."""

import pytest

from pagermcp.origins import Origins
from pagermcp.settings import InvalidSetting, Settings

PROXIES = "127.0.0.1, 10.0.0.0/8,2001:db8:1::/48"


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "localhost", ""])
def test_without_a_proxy_nobody_on_this_machine_is_counted_and_nothing_said_is_believed(peer: str) -> None:
    assert Origins("").of(peer) is None
    assert Origins("").of(peer, "203.0.113.7") is None
    assert Origins("").of_connection(peer) is None


def test_without_a_proxy_others_are_counted_by_the_address_they_come_from() -> None:
    assert Origins("").of("203.0.113.7", "198.51.100.1") == "203.0.113.7"
    assert Origins("").of_connection("203.0.113.7") == "203.0.113.7"


def test_a_client_of_ipv6_counts_by_its_first_64_bits_and_ipv4_within_it_as_ipv4() -> None:
    origins = Origins("")
    assert origins.of("2001:db8:2:3::1") == origins.of("2001:db8:2:3:ffff::9") == "2001:db8:2:3::/64"
    assert origins.of("2001:db8:2:4::1") != origins.of("2001:db8:2:3::1")
    assert origins.of("::ffff:203.0.113.7") == "203.0.113.7"
    assert origins.of("fe80::1%eth0") == "fe80::/64"


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("6.6.6.6, 203.0.113.7", "203.0.113.7"),  # whatever he writes himself stands before it
        ("127.0.0.1, 203.0.113.7", "203.0.113.7"),
        ("6.6.6.6, 203.0.113.7, 10.1.2.3", "203.0.113.7"),  # one proxy behind another
        ("203.0.113.7,10.1.2.3,2001:db8:1::5", "203.0.113.7"),
        ("2001:db8:9:9:1::1", "2001:db8:9:9::/64"),
        ("203.0.113.7:4711", "203.0.113.7"),
        ("[2001:db8:9:9:1::1]:4711", "2001:db8:9:9::/64"),
        ("10.1.2.3", "10.1.2.3"),  # a proxy's own request
        ("6.6.6.6, unknown", "127.0.0.1"),  # then the proxy stands for its clients, and not what a client wrote
        ("6.6.6.6, ", "127.0.0.1"),
        ("", "127.0.0.1"),
    ],
)
def test_a_proxy_is_believed_and_only_as_far_as_proxies_wrote_it(forwarded: str, client: str) -> None:
    assert Origins(PROXIES).of("127.0.0.1", forwarded) == client


@pytest.mark.parametrize("proxies", ["::ffff:10.0.0.0/104", "::ffff:10.1.2.3", "10.0.0.0/8"])
def test_a_proxy_of_ipv4_may_be_named_and_seen_as_one_of_ipv6(proxies: str) -> None:
    for peer in ("10.1.2.3", "::ffff:10.1.2.3"):
        assert Origins(proxies).of(peer, "203.0.113.7") == "203.0.113.7"
        assert Origins(proxies).of("192.0.2.1", "203.0.113.7") == "192.0.2.1"


def test_who_is_no_proxy_is_not_believed() -> None:
    assert Origins(PROXIES).of("203.0.113.7", "198.51.100.1") == "203.0.113.7"
    assert Origins("192.0.2.1").of("127.0.0.1", "198.51.100.1") == "127.0.0.1"


def test_a_proxy_may_have_as_many_connections_as_it_needs() -> None:
    assert Origins(PROXIES).of_connection("10.1.2.3") is None
    assert Origins(PROXIES).of_connection("203.0.113.7") == "203.0.113.7"
    assert Origins("192.0.2.1").of_connection("127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize("value", ["proxy.example.org", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.1 10.0.0.2"])
def test_what_is_no_address_is_one_line(value: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        Settings.read({"PAGERMCP_TRUSTED_PROXY": value})
    form = "must be addresses or networks, as in 127.0.0.1,10.0.0.0/8: "
    assert str(refused.value).startswith(f"PAGERMCP_TRUSTED_PROXY={value!r}: {form}")
