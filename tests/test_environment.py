"""environment.py: secrets from files, and what is wrong said in one sentence that shows no secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay.config import SECRETS, Settings
from relay.environment import env_names, load_settings, put_into_environment
from relay.errors import StartupError

TOKEN = "a-token-of-the-environment-1"
OTHER = "a-token-of-the-environment-2"
KEY = "a key of the environment: 32 bytes or more"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a .env, and an environment where nothing is configured and nothing stays."""
    monkeypatch.chdir(tmp_path)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RELAY_", "PORT"))}
    monkeypatch.setattr(os, "environ", clean)


def given(**values: str) -> None:
    os.environ.update({f"RELAY_{name.upper()}": value for name, value in values.items()})


def refusal(**values: str) -> str:
    """What is said about these settings; never a value that may be secret."""
    given(**values)
    with pytest.raises(StartupError) as refused:
        load_settings()
    said = str(refused.value)
    assert "\n" not in said
    assert said.endswith((".", "?"))
    for name, value in values.items():
        if name in SECRETS:
            assert not [part for part in value.split(",") if part and part in said]
    return said


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_may_come_from_a_file(tmp_path: Path, name: str) -> None:
    secret = "redis://user:password@host" if name == "store_url" else KEY.replace(" ", "-")
    (tmp_path / "secret").write_text(f"{secret}\n")
    given(**{f"{name}_file": str(tmp_path / "secret")})
    value = getattr(load_settings(), name)
    assert (value if isinstance(value, str) else value.get_secret_value()) == secret


def test_the_name_of_the_file_may_be_in_dotenv(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(TOKEN)
    (tmp_path / ".env").write_text("RELAY_ADMIN_TOKEN_FILE=secret\n")
    assert load_settings().admin_token.get_secret_value() == TOKEN
    (tmp_path / ".env").write_text(f"RELAY_ADMIN_TOKEN_FILE=secret\nRELAY_ADMIN_TOKEN={OTHER}\n")
    assert refusal() == "RELAY_ADMIN_TOKEN and RELAY_ADMIN_TOKEN_FILE are both set. Keep one of them."


def test_a_flag_wins_over_a_file(tmp_path: Path) -> None:
    given(store_url_file=str(tmp_path / "missing"))
    assert load_settings(store_url="memory://").store_url == "memory://"


def test_a_value_and_a_file_are_one_too_many(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(OTHER)
    said = refusal(client_token=TOKEN, client_token_file=str(tmp_path / "secret"))
    assert said == "RELAY_CLIENT_TOKEN and RELAY_CLIENT_TOKEN_FILE are both set. Keep one of them."


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot read the file it names: No such file or directory"),
        (b"", "the file it names is empty"),
        (b" \n", "the file it names is empty"),
        (b"\xff\xfe\x00", "cannot read the file it names: it is not text"),
    ],
)
def test_a_file_that_holds_no_secret_is_named_by_its_variable(tmp_path: Path, content: bytes | None, why: str) -> None:
    if content is not None:
        (tmp_path / "secret").write_bytes(content)
    assert refusal(secret_file=str(tmp_path / "secret")) == f"RELAY_SECRET_FILE: {why}."


def test_a_secret_in_a_file_is_held_to_the_same_rules(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("short")
    said = refusal(agent_token_file=str(tmp_path / "secret"))
    assert said.startswith("RELAY_AGENT_TOKEN: every token needs at least 24 characters")
    assert "short" not in said


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("client_token", "too-short-a-token", "every token needs at least 24 characters of ASCII without blanks; "),
        ("agent_token", f"{TOKEN},short", "every token needs at least 24 characters"),
        ("admin_token", "a token with blanks in it 123456", "without blanks"),
        ("admin_token", "tökentökentökentökentöken1", "of ASCII"),
        ("secret", "x" * 31, "every key needs at least 32 bytes, and a comma begins the next key; `openssl"),
        ("secret", f"{KEY},{'x' * 8}", "every key needs at least 32 bytes"),
        ("allowed_origins", "chat.example.org", "an origin is scheme and host in lower case and nothing behind"),
        ("allowed_origins", "https://chat.example.org/", "nothing behind: https://chat.example.org"),
        ("allowed_origins", "https://Chat.example.org", "in lower case"),
        ("allowed_origins", "*", "an origin is scheme and host"),
        ("allowed_origins", "null", "an origin is scheme and host"),
        ("trusted_proxies", "10.0.0.0/8, proxy", "'proxy' does not appear to be an IPv4 or IPv6 network"),
        ("trusted_proxies", "10.0.0.1/8", "10.0.0.1/8 has host bits set"),
        ("trusted_proxies", "*", "'*' does not appear to be"),
    ],
)
def test_a_wrong_value_is_one_sentence(name: str, value: str, sentence: str) -> None:
    said = refusal(**{name: value})
    assert said.startswith(f"{env_names()[name]}: ")
    assert sentence in said
    assert said.endswith("See docs/settings.md for what it takes.")


@pytest.mark.parametrize(
    "values",
    [
        {"client_token": TOKEN, "agent_token": TOKEN},
        {"client_token": TOKEN, "admin_token": f"{OTHER}, {TOKEN}"},
        {"agent_token": f"{TOKEN},{TOKEN}"},
    ],
)
def test_one_token_has_one_role(values: dict[str, str]) -> None:
    assert refusal(**values).startswith("RELAY_*_TOKEN: the same token is given for two roles, or twice. Give each ")


def test_settings_show_no_secret_however_they_are_printed() -> None:
    given(client_token=TOKEN, secret=KEY)
    settings = load_settings()
    for shown in (repr(settings), str(settings), settings.model_dump_json(), f"{settings.client_token}"):
        assert TOKEN not in shown
        assert KEY not in shown


def test_workers_read_the_same_settings(tmp_path: Path) -> None:
    """Also if a file is named in .env, which they read again."""
    (tmp_path / "secret").write_text(TOKEN)
    (tmp_path / ".env").write_text("RELAY_ADMIN_TOKEN_FILE=secret\nRELAY_MAX_SESSIONS=5\n")
    given(client_token=OTHER, insecure="true", allowed_origins="https://a.example, https://b.example")
    settings: Settings = load_settings(port=1234)
    put_into_environment(settings)
    assert load_settings() == settings
