"""Settings from the environment and from options."""

import dataclasses

import pytest
from conftest import REPOSITORY

from pagermcp.settings import InvalidSetting, Settings


def test_without_an_environment_the_defaults_hold() -> None:
    settings = Settings.read({})
    assert settings == Settings()
    assert (settings.host, settings.port, settings.data_dir) == ("127.0.0.1", 8080, "./spool")
    assert (settings.max_messages_per_mailbox, settings.max_message_bytes) == (128, 65536)
    assert settings.wait_timeout_seconds == 0


def test_the_environment_is_read_and_an_option_overrules_it() -> None:
    environment = {"PORT": "9000", "HOST": "::1", "WAIT_TIMEOUT_SECONDS": "1.5", "PAGERMCP_WATCH": "off"}
    settings = Settings.read(environment, {"port": "9001", "host": None})
    assert (settings.port, settings.host, settings.wait_timeout_seconds, settings.watch) == (9001, "::1", 1.5, "off")


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert Settings.read({"PORT": "", "DATA_DIR": "  "}) == Settings()


def test_a_wrong_value_names_the_variable_the_value_and_what_is_right() -> None:
    with pytest.raises(InvalidSetting, match=r"PORT='-1': must be a whole number, from 0 to 65535"):
        Settings.read({"PORT": "-1"})


def test_a_setting_cannot_be_changed_later() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]


def test_the_readme_lists_every_setting_with_its_default() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    assert "| `MODE` | `server` |" in readme
    for field in dataclasses.fields(Settings):
        default = f"`{field.default}`" if field.default != "" else ""
        assert f"| `{field.metadata['variable']}` | {default} |".replace("|  |", "| |") in readme
