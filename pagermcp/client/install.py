"""What `pagermcp install` does: it puts a plugin where an agent finds it, and merges what it needs into the agent's own
configuration. All changes are worked out first and shown, and each file is replaced at once or not at all."""

import difflib
import json
import os
import re
import secrets
import shlex
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagermcp import files
from pagermcp.client import merge

_OUR_COMMAND = re.compile(r"pagermcp'? hook [a-z-]+ --client codex 2>/dev/null \|\| true$")
_MOST_BYTES = 1 << 24
_PACKAGE = Path(__file__).parent.parent


class CannotInstall(Exception):
    """Something is in the way, and nothing was changed. The message is one line that says what, and what to do."""


@dataclass(frozen=True)
class Change:
    """A file that is to become another. before, after: its content; None: there is none. mode: which it then has; root:
    the folder, and those in it, that go too when they are empty."""

    path: str
    before: bytes | None
    after: bytes | None
    mode: int
    root: str

    def diff(self) -> list[str]:
        """The change as lines of a unified diff."""
        before, after = ((one or b"").decode(errors="replace").splitlines() for one in (self.before, self.after))
        old, new = (os.devnull if one is None else self.path for one in (self.before, self.after))
        lines = list(difflib.unified_diff(before, after, old, new, lineterm="", n=0))  # around it may be others' keys
        return lines or [f"{self.path}: mode {self.mode:o}"]

    def make(self) -> None:
        """Make it, unless the file has changed meanwhile. Raises CannotInstall, and OSError."""
        if _read(self.path) != self.before:
            raise CannotInstall(f"{self.path} has just been changed by somebody else; try again")
        path = os.path.realpath(self.path)  # it may be a link into a folder with somebody's settings
        folder = os.path.dirname(path)
        if self.after is None:
            os.unlink(path)
            while self.root and f"{folder}/".startswith(f"{os.path.realpath(self.root)}/") and not os.listdir(folder):
                os.rmdir(folder)
                folder = os.path.dirname(folder)
            return
        _make_folders(folder)
        owner = os.stat(folder if self.before is None else path)
        temporary = f"{path}.{secrets.token_hex(4)}"
        try:
            files.write(temporary, self.after, self.mode)
            if os.geteuid() == 0:
                os.chown(temporary, owner.st_uid, owner.st_gid)
            files.replace(temporary, path)
        except OSError:
            files.remove(temporary)
            raise
        files.sync_directory(folder)


@dataclass(frozen=True)
class _File:
    """A file that an agent reads, and what becomes of its text; None: it goes. mode: of a new one, and of one that is
    not theirs."""

    path: str
    mode: int
    change: Callable[[str], str | None]
    root: str = ""
    is_theirs: bool = True


def changes(client: str, uninstall: bool) -> list[Change]:
    """What is to be changed for `opencode`, `claude` or `codex`; nothing when all is as it should be. Raises
    CannotInstall."""
    found = []
    for file in {"opencode": _opencode, "claude": _claude, "codex": _codex}[client](uninstall):
        try:
            before = _read(file.path)
            text = (before or b"").decode(errors="strict" if file.is_theirs else "replace")
            after = file.change(text)
            is_new = before is None or after is None
            there = 0 if is_new else stat.S_IMODE(os.stat(file.path).st_mode)
        except (merge.NotMergeable, UnicodeDecodeError) as error:
            raise CannotInstall(f"{file.path} is left alone: {error}; mend it, and try again") from None
        except OSError as error:
            raise CannotInstall(f"{file.path}: {error.strerror}") from None
        mode = file.mode if is_new or not file.is_theirs else there
        if (after == text and (is_new or mode == there)) or (after is None and before is None):
            continue
        if uninstall and after is not None and not after.strip(" \n{}") and not os.path.islink(file.path):
            after = None
        found.append(Change(file.path, before, None if after is None else after.encode(), mode, file.root))
    return found[::-1] if uninstall else found  # who names a file comes after it, and goes before it


def _opencode(uninstall: bool) -> Iterator[_File]:
    folder = os.path.join(_xdg("XDG_CONFIG_HOME", "~/.config"), "opencode")
    yield _ours(f"{folder}/plugins/pager.js", _plugins_folder() / "pager.js", uninstall, is_shared=True)
    names = [f"{folder}/opencode.{kind}" for kind in ("jsonc", "json")]
    server = {"type": "local", "command": [_program(), "mcp"], "enabled": True, "timeout": 120_000}
    there = [name for name in names if os.path.exists(name)]
    for name in there if uninstall else [*there, *names[1:]][:1]:
        yield _File(name, 0o600, _member(["mcp", "pager"], server, uninstall))


def _claude(uninstall: bool) -> Iterator[_File]:
    """Claude Code loads a marketplace that is a folder from where it is, so it gets one that stays."""
    market = os.path.join(_xdg("XDG_DATA_HOME", "~/.local/share"), "pagermcp", "claude")
    plugin = _plugins_folder() / "claude"
    manifest = json.loads((plugin / ".claude-plugin/plugin.json").read_text())
    entry = {"name": "pagermcp", "source": "./pagermcp", "description": manifest["description"]}
    catalogue = json.dumps({"name": "pagermcp", "owner": manifest["author"], "plugins": [entry]}, indent=2) + "\n"
    sources = _files_in(plugin)
    for name in sources | _files_in(Path(market, "pagermcp")):  # an older plugin may have had more
        yield _ours(f"{market}/pagermcp/{name}", sources.get(name), uninstall, market)
    path = f"{market}/.claude-plugin/marketplace.json"
    yield _File(path, 0o644, lambda text: None if uninstall else catalogue, market)
    source = {"source": {"source": "directory", "path": market}}
    known = _member(["extraKnownMarketplaces", "pagermcp"], source, uninstall)
    enabled = _member(["enabledPlugins", "pagermcp@pagermcp"], True, uninstall)
    home = os.environ.get("CLAUDE_CONFIG_DIR") or os.path.expanduser("~/.claude")
    yield _File(f"{home}/settings.json", 0o600, lambda text: enabled(known(text)))


def _codex(uninstall: bool) -> Iterator[_File]:
    plugin = _plugins_folder() / "codex"
    skill = os.path.expanduser("~/.agents/skills/pager")
    source = _plugins_folder() / "claude/skills/pager/SKILL.md"
    yield _ours(f"{skill}/SKILL.md", source, uninstall, skill, is_shared=True)
    home = os.environ.get("CODEX_HOME") or os.path.expanduser("~/.codex")
    lines = _with_program((plugin / "config.toml").read_text())

    def change_table(text: str) -> str:
        if uninstall:
            return merge.take_table(text, ["mcp_servers", "pager"], _is_our_server)
        return merge.put_table(text, lines, _is_our_server)

    yield _File(f"{home}/config.toml", 0o600, _in_its_line_ends(change_table))
    hooks = json.loads(_with_program((plugin / "hooks.json").read_text()))["hooks"]

    def change_hooks(text: str) -> str:
        for event, [group] in hooks.items():
            path = ["hooks", event]
            text = merge.take(text, path, _is_our_hook) if uninstall else merge.add(text, path, group, _is_our_hook)
        return text

    yield _File(f"{home}/hooks.json", 0o600, _in_its_line_ends(change_hooks))


def _files_in(folder: Path) -> dict[str, Path]:
    """All files in it, by their paths within."""
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}


def _plugins_folder() -> Path:
    """Where the plugins are: in the package, or beside it in a checkout."""
    inside = _PACKAGE / "plugins"
    return inside if inside.is_dir() else _PACKAGE.parent / "plugins"


def _ours(target: str, source: Path | None, uninstall: bool, root: str = "", is_shared: bool = False) -> _File:
    """A file that is ours alone. is_shared: in a folder in which others have files; if this one is theirs it stays."""

    def change(there: str) -> str | None:
        if is_shared and there and "pagermcp" not in there.lower():
            raise merge.NotMergeable("it is not ours")
        return None if uninstall or source is None else _with_program(source.read_text())

    return _File(target, source.stat().st_mode & 0o755 if source else 0, change, root, is_theirs=is_shared)


def _member(path: list[str], value: object, uninstall: bool) -> Callable[[str], str]:
    def change(text: str) -> str:
        there = merge.value(text, path)
        if there is not None and "pagermcp" not in json.dumps({path[-1]: there}):
            if uninstall:
                return text
            raise merge.NotMergeable(f"{'.'.join(path)} is somebody else's")
        return merge.drop(text, path) if uninstall else merge.put(text, path, value)

    return _in_its_line_ends(change)


def _in_its_line_ends(change: Callable[[str], str]) -> Callable[[str], str]:
    """The change, of a text whose lines may end as on Windows."""

    def with_line_ends(text: str) -> str:
        if not (count := text.count("\r\n")) or count != text.count("\n"):
            return change(text)
        return change(text.replace("\r\n", "\n")).replace("\n", "\r\n")

    return with_line_ends


def _is_our_hook(group: Any) -> bool:
    """Whether a group of hooks is ours and nothing else."""
    hooks = group.get("hooks") if isinstance(group, dict) else None
    commands = [hook.get("command") if isinstance(hook, dict) else None for hook in hooks or [None]]
    return all(_OUR_COMMAND.search(str(command)) for command in commands)


def _xdg(name: str, default: str) -> str:
    given = os.environ.get(name, "")
    return given if os.path.isabs(given) else os.path.expanduser(default)  # a relative one counts for none


def _is_our_server(table: Any) -> bool:
    return "pagermcp" in json.dumps(table, default=str)


def _program() -> str:
    """Our own command, by its whole path: agents are not started with the PATH of this shell."""
    beside = os.path.join(os.path.dirname(sys.executable), "pagermcp")
    found = beside if os.access(beside, os.X_OK) else shutil.which("pagermcp")
    if not found:
        raise CannotInstall("there is no command pagermcp beside this Python, nor on the PATH, which agents could run")
    return os.path.abspath(found)


def _with_program(text: str) -> str:
    """A plugin's file with our program's path where it calls `pagermcp`."""
    program = _program()
    quoted = shlex.quote(program)
    for before, after in (
        ("pagermcp=pagermcp ", f"pagermcp={quoted} "),
        ('"command": "pagermcp"', f'"command": {json.dumps(program)}'),
        ('command = "pagermcp"', f"command = {json.dumps(program, ensure_ascii=False)}"),
        ('"pagermcp hook ', f'"{json.dumps(quoted)[1:-1]} hook '),
    ):
        text = text.replace(before, after)
    return text


def _read(path: str) -> bytes | None:
    try:
        return files.read(os.path.realpath(path), _MOST_BYTES)[0]
    except (FileNotFoundError, NotADirectoryError):
        return None


def _make_folders(folder: str) -> None:
    """Like makedirs, and what root makes belongs to whom the folder above belongs to."""
    if os.path.isdir(folder):
        return
    _make_folders(os.path.dirname(folder))
    os.mkdir(folder, 0o755)
    if os.geteuid() == 0:
        above = os.stat(os.path.dirname(folder))
        os.chown(folder, above.st_uid, above.st_gid)
