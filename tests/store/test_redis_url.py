"""What a URL says about a Redis, and what it may not say."""

from __future__ import annotations

import pytest

from relay.errors import StartupError
from relay.store.redis_url import parse_redis_url


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis://:6379",
        "redis://:secret@host:port",
        "redis://:not/escaped-secret@host",
        "redis://:not?escaped-secret@host",
        "redis://host:99999",
        "redis://host/abc",
        "redis://host/1/2",
        "redis://a,b/0",
        "redis://host?db=1",
        "redis+sentinel://host:26379",
        "redis+cluster://host:7000/1",
        "redis+magic://host",
        "redis://host?ssl_ca_certs=/x",
    ],
)
def test_a_wrong_url_is_refused_with_a_sentence(url: str) -> None:
    with pytest.raises(StartupError, match=r"^RELAY_STORE_URL: .+\. It takes redis://") as refused:
        parse_redis_url(url)
    assert "secret" not in str(refused.value)


def test_a_url_says_where_and_as_whom() -> None:
    plain = parse_redis_url("redis://user:se%40cret@example.org/3")
    assert (plain.hosts, plain.db, plain.tls) == ((("example.org", 6379),), 3, False)
    assert plain.options == {"username": "user", "password": "se@cret"}
    assert "cret" not in plain.name
    secure = parse_redis_url("rediss://:secret@[::1]:7000?ssl_ca_certs=/ca.pem&ssl_check_hostname=false")
    assert (secure.hosts, secure.tls) == ((("::1", 7000),), True)
    assert secure.options == {"password": "secret", "ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False}
    sentinel = parse_redis_url("redis+sentinel://:pw@one,two:7/mymaster/2?sentinel_password=other")
    assert (sentinel.hosts, sentinel.service, sentinel.db) == ((("one", 26379), ("two", 7)), "mymaster", 2)
    assert (sentinel.options, sentinel.sentinel_options) == ({"password": "pw"}, {"password": "other"})
    many = parse_redis_url("redis+cluster://one:7000,two:7001")
    assert many.hosts == (("one", 7000), ("two", 7001))
