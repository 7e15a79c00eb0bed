"""`pagermcp install`: plugins where agents find them, and their configuration merged."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from conftest import NOBODY, REPOSITORY, Client, as_root

from pagermcp.client import install

AGENTS = ["opencode", "claude", "codex"]


@pytest.fixture
def home(client: Client) -> Path:
    home = client.folder / "home"
    home.mkdir()
    client.environment |= {"HOME": str(home)}
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        client.environment.pop(name, None)
    return home


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def load(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.parametrize("agent", AGENTS)
def test_it_is_shown_first_done_once_and_taken_out_again(client: Client, home: Path, agent: str) -> None:
    shown = client("install", agent, "--dry-run")
    assert shown.stderr == "pagermcp: nothing was changed, since this was --dry-run\n"
    assert tree(home) == {}
    done = client("install", agent)
    assert done.stdout == shown.stdout
    assert "pagermcp number" in done.stderr
    files = tree(home)
    assert len(files) >= 2
    assert all(path.stat().st_mode & 0o022 == 0 for path in home.rglob("*"))
    for name in files:
        assert f"+++ {home}/{name}\n" in done.stdout
    again = client("install", agent)
    assert again.stdout == "nothing to change\n"
    assert tree(home) == files
    client("install", agent, "--uninstall")
    assert tree(home) == {}
    assert client("install", agent, "--uninstall").stdout == "nothing to change\n"


def test_opencode_gets_the_plugin_and_the_mcp_server(client: Client, home: Path) -> None:
    client("install", "opencode")
    folder = home / ".config/opencode"
    assert (folder / "plugins/pager.js").read_text() == (REPOSITORY / "plugins/pager.js").read_text()
    server = load(folder / "opencode.json")["mcp"]["pager"]
    assert (server["type"], server["command"][1:], server["enabled"]) == ("local", ["mcp"], True)
    assert os.access(server["command"][0], os.X_OK)
    assert oct((folder / "opencode.json").stat().st_mode)[-3:] == "600"


def test_opencodes_file_with_comments_is_the_one_that_is_changed(client: Client, home: Path) -> None:
    folder = home / ".config/opencode"
    folder.mkdir(parents=True)
    mine = '{\n  // mine\n  "mcp": {"other": {"type": "remote"}},\n}\n'
    (folder / "opencode.jsonc").write_text(mine)
    (folder / "opencode.jsonc").chmod(0o640)
    diff = client("install", "opencode").stdout
    text = (folder / "opencode.jsonc").read_text()
    assert "// mine" in text
    assert '"other": {"type": "remote"}, "pager"' in text
    assert not (folder / "opencode.json").exists()
    assert oct((folder / "opencode.jsonc").stat().st_mode)[-3:] == "640"
    assert '-  "mcp": {"other": {"type": "remote"}},' in diff
    client("install", "opencode", "--uninstall")
    assert (folder / "opencode.jsonc").read_text() == mine


def test_claude_code_gets_a_marketplace_that_stays_where_it_is(client: Client, home: Path) -> None:
    (home / ".claude").mkdir()
    mine = {"permissions": {"allow": ["Bash(ls)"]}, "enabledPlugins": {"other@x": True}}
    (home / ".claude/settings.json").write_text(json.dumps(mine, indent=2))
    client("install", "claude")
    settings = load(home / ".claude/settings.json")
    assert settings["permissions"] == mine["permissions"]
    assert settings["enabledPlugins"] == {"other@x": True, "pagermcp@pagermcp": True}
    market = Path(settings["extraKnownMarketplaces"]["pagermcp"]["source"]["path"])
    catalogue = load(market / ".claude-plugin/marketplace.json")
    plugin = market / catalogue["plugins"][0]["source"]
    assert set(tree(plugin)) == set(tree(REPOSITORY / "plugins/claude"))
    assert os.access(plugin / "bin/hook", os.X_OK)
    assert (
        f"\npagermcp={load(plugin / '.mcp.json')['mcpServers']['pager']['command']} #"
        in (plugin / "bin/hook").read_text()
    )
    (plugin / "older").write_text("from an older plugin")
    client("install", "claude")
    assert not (plugin / "older").exists()
    client("install", "claude", "--uninstall")
    assert load(home / ".claude/settings.json") == mine


def test_codex_gets_hooks_beside_others_the_server_and_the_skill(client: Client, home: Path) -> None:
    codex = home / "codex"
    codex.mkdir()
    client.environment["CODEX_HOME"] = str(codex)
    mine = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "other hook"}]}]}}
    (codex / "hooks.json").write_text(json.dumps(mine))
    (codex / "config.toml").write_text('model = "x" # mine')
    client("install", "codex")
    stop = load(codex / "hooks.json")["hooks"]["Stop"]
    assert stop[0] == mine["hooks"]["Stop"][0]
    assert stop[1]["hooks"][0]["command"].endswith("pagermcp hook stop --client codex 2>/dev/null || true")
    assert set(load(codex / "hooks.json")) == {"hooks"}  # Codex refuses a file with another name in it
    config = tomllib.loads((codex / "config.toml").read_text())
    assert (config["model"], config["mcp_servers"]["pager"]["args"]) == ("x", ["mcp"])
    skill = (home / ".agents/skills/pager/SKILL.md").read_text()
    assert skill == (REPOSITORY / "plugins/claude/skills/pager/SKILL.md").read_text()
    client("install", "codex", "--uninstall")
    assert load(codex / "hooks.json") == mine
    assert tomllib.loads((codex / "config.toml").read_text()) == {"model": "x"}


@pytest.mark.parametrize(
    ("agent", "file", "content", "says"),
    [
        ("opencode", ".config/opencode/opencode.json", '{"mcp": ', "it is not JSON: line 1, column 9"),
        ("opencode", ".config/opencode/opencode.json", '{"mcp": []}', "mcp is not an object"),
        ("opencode", ".config/opencode/plugins/pager.js", "export default 1", "it is not ours"),
        ("claude", ".claude/settings.json", "[]", "all of it is not an object"),
        ("claude", ".claude/settings.json", b"\xff\xfe", "can't decode"),
        ("codex", ".codex/config.toml", "x = ", "Invalid value"),
        ("codex", ".codex/config.toml", '[mcp_servers.pager]\ncommand = "mine"\n', "pager"),
        ("codex", ".codex/hooks.json", '{"hooks": {"Stop": {}}}', "hooks.Stop is not an array"),
        ("codex", ".agents/skills/pager/SKILL.md", "another one", "it is not ours"),
    ],
)
def test_what_can_not_be_merged_is_left_alone_and_so_is_all_else(
    client: Client, home: Path, agent: str, file: str, content: str | bytes, says: str
) -> None:
    path = home / file
    path.parent.mkdir(parents=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = tree(home)
    error = client("install", agent, code=10).stderr
    assert f"{path} is left alone: " in error
    assert says in error
    assert error.count("\n") == 1
    assert tree(home) == before


@pytest.mark.parametrize("there", ['{"type": "remote", "url": "https://mine"}', "[]"])
def test_somebody_elses_server_of_that_name_stays(client: Client, home: Path, there: str) -> None:
    config = home / ".config/opencode/opencode.json"
    config.parent.mkdir(parents=True)
    config.write_text(f'{{"mcp": {{"pager": {there}}}}}')
    before = tree(home)
    assert "mcp.pager is somebody else's" in client("install", "opencode", code=10).stderr
    client("install", "opencode", "--uninstall")
    assert tree(home) == before


@pytest.mark.parametrize(
    "command",
    [
        "pagermcp send 'a stop hook'",
        "pagermcp hook stop --client codex --hold 5m",
        "/x/pagermcp hook prompt --client codex",
    ],
)
def test_hooks_of_the_users_own_are_not_taken_for_ours(client: Client, home: Path, command: str) -> None:
    (home / ".codex").mkdir()
    mine = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": command}]}]}}
    (home / ".codex/hooks.json").write_text(json.dumps(mine))
    client("install", "codex")
    assert mine["hooks"]["Stop"][0] in load(home / ".codex/hooks.json")["hooks"]["Stop"]
    client("install", "codex", "--uninstall")
    assert load(home / ".codex/hooks.json") == mine


def test_a_handler_that_the_user_has_put_beside_ours_stays(client: Client, home: Path) -> None:
    client("install", "codex")
    path = home / ".codex/hooks.json"
    hooks = load(path)
    hooks["hooks"]["Stop"][0]["hooks"].append({"type": "command", "command": "mine"})
    path.write_text(json.dumps(hooks))
    client("install", "codex", "--uninstall")
    assert "mine" in path.read_text()


def test_windows_line_ends_stay(client: Client, home: Path) -> None:
    (home / ".codex").mkdir()
    before = {"config.toml": b'model = "x"\r\n', "hooks.json": b'{\r\n  "hooks": {\r\n    "Stop": []\r\n  }\r\n}\r\n'}
    for name, content in before.items():
        (home / ".codex" / name).write_bytes(content)
    client("install", "codex")
    for name in before:
        content = (home / ".codex" / name).read_bytes()
        assert content.count(b"\n") == content.count(b"\r\n") > 5
    client("install", "codex", "--uninstall")
    assert (home / ".codex/config.toml").read_bytes() == before["config.toml"]


def test_a_hook_that_lost_its_right_to_be_run_gets_it_back(client: Client, home: Path) -> None:
    client("install", "claude")
    [hook] = home.glob(".local/share/pagermcp/claude/pagermcp/bin/hook")
    hook.chmod(0o644)
    assert client("install", "claude").stdout == f"{hook}: mode 755\n"
    assert os.access(hook, os.X_OK)
    assert client("install", "claude").stdout == "nothing to change\n"


def test_an_entry_in_a_file_that_another_has_replaced_is_taken_out_too(client: Client, home: Path) -> None:
    client("install", "opencode")
    (home / ".config/opencode/opencode.jsonc").write_text("{}")
    client("install", "opencode", "--uninstall")
    assert set(tree(home)) == {".config/opencode/opencode.jsonc"}


def test_a_file_that_is_a_link_is_changed_where_it_is(client: Client, home: Path) -> None:
    (home / "dotfiles").mkdir()
    (home / ".claude").mkdir()
    (home / "dotfiles/settings.json").write_text("{}\n")
    (home / ".claude/settings.json").symlink_to(home / "dotfiles/settings.json")
    client("install", "claude")
    assert (home / ".claude/settings.json").is_symlink()
    assert "enabledPlugins" in load(home / "dotfiles/settings.json")
    client("install", "claude", "--uninstall")
    assert load(home / ".claude/settings.json") == {}


def test_a_file_that_somebody_changes_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("{}")
    change = install.Change(str(path), b"{}", b'{"a":1}', 0o600, "")
    path.write_text('{"theirs":1}')
    with pytest.raises(install.CannotInstall, match="has just been changed"):
        change.make()
    assert path.read_text() == '{"theirs":1}'
    assert [*tmp_path.iterdir()] == [path]


@as_root
def test_what_root_installs_for_somebody_belongs_to_them(client: Client, home: Path) -> None:
    os.chown(home, NOBODY, NOBODY)
    client("install", "codex")
    for path in home.rglob("*"):
        assert path.stat().st_uid == NOBODY, path


def test_a_folder_that_can_not_be_written_is_one_line(client: Client, home: Path) -> None:
    (home / ".codex").write_text("a file")
    error = client("install", "codex", code=10).stderr
    assert str(home / ".codex") in error
    assert error.count("\n") == 1


def test_without_pagermcp_on_the_path_that_is_said(client: Client, home: Path) -> None:
    assert "put it on the PATH" in client("install", "codex", environment={"PATH": "/usr/bin:/bin"}).stderr
