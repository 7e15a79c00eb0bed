"""Changes to other programs' configuration files, as text: what is ours goes in or out, and all the rest, with its
comments and its layout, stays as it is. JSON may have comments and trailing commas, as OpenCode's has."""

import json
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

_SPACE = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_SCALAR = re.compile(r'"(?:[^"\\\n]|\\.)*"|[^\s,:\[\]{}/"]+')
_REST_OF_LINE = re.compile(r"[ \t]*,?[ \t]*(?://[^\n]*|/\*[^\n]*?\*/[ \t]*)?(?=\n)")
_COMMA = re.compile(r"(?>\s|//[^\n]*|/\*.*?\*/)*+,", re.DOTALL)  # never one that is in a comment
_BEGIN = "# pagermcp install has put here what follows"
_END = "# pagermcp: end"


class NotMergeable(ValueError):
    """The file is not what it should be, so it is left alone. The message says where it is wrong."""


@dataclass
class _Node:
    """A value in the text, and the members of an object or the elements of an array. start, end: where it is; begins:
    where it does with its name."""

    start: int
    end: int = 0
    value: Any = None
    items: list["_Node"] = field(default_factory=list)
    name: str | None = None
    begins: int = 0


def put(text: str, path: Sequence[str], value: object) -> str:
    """JSON in which the member at this path has this value; objects on the way are made. Raises NotMergeable."""
    *way, name = path
    text, node = _object(text, way, {})
    if item := _at(node, [name]):
        if item.value == value:
            return text
        return text[: item.start] + _dumped(value, _indent(text, item.begins)) + text[item.end :]
    return _with(text, node, value, f"{json.dumps(name)}: ")


def drop(text: str, path: Sequence[str]) -> str:
    """JSON without the member at this path, nor the objects around it that are empty then. Raises NotMergeable."""
    if not text.strip():
        return text
    root = _scan_all(text)
    around, node = _at(root, path[:-1]), _at(root, path)
    if around is None or node is None:
        return text
    text = _without(text, around, node)
    return drop(text, path[:-1]) if len(around.items) == 1 and len(path) > 1 else text


def value(text: str, path: Sequence[str]) -> Any:
    """What JSON has at this path; None when there is nothing. Raises NotMergeable."""
    node = _at(_scan_all(text), path) if text.strip() else None
    return node and node.value


def add(text: str, path: Sequence[str], value: object, is_ours: Callable[[Any], bool]) -> str:
    """JSON in which the array at this path has one element that is ours, this one. Raises NotMergeable."""
    if [item.value for item in _object(text, path, [])[1].items if is_ours(item.value)] == [value]:
        return text
    text = take(text, path, is_ours)
    text, node = _object(text, path, [])
    return _with(text, node, value, "")


def take(text: str, path: Sequence[str], is_ours: Callable[[Any], bool]) -> str:
    """JSON in which the array at this path has no element that is ours; and without it, if it is empty then."""
    while text.strip() and (node := _at(_scan_all(text), path)):
        found = [item for item in node.items if item.name is None and is_ours(item.value)]
        if not found:
            break
        if len(node.items) == 1:
            return drop(text, path)
        text = _without(text, node, found[0])
    return text


def put_table(text: str, lines: str, is_ours: Callable[[Any], bool]) -> str:
    """TOML that ends with these lines, marked as ours: a table, and those in it. Raises NotMergeable, also when
    somebody else has put that table there."""
    path = _table(lines.partition("\n")[0])
    if _at_path(_loaded(text), path) == _at_path(_loaded(lines), path):
        return text
    rest = take_table(text, path, is_ours)
    added = f"{rest}{'' if not rest or rest.endswith(chr(10)) else chr(10)}{_BEGIN}\n{lines}{_END}\n"
    _loaded(added)
    return added


def take_table(text: str, path: Sequence[str], is_ours: Callable[[Any], bool]) -> str:
    """TOML without the table at this path, nor those in it, nor our marks, if it is ours. Raises NotMergeable.

    The marks don't say where it is: Codex writes what is new before the last one, and loses the first."""
    wanted = _loaded(text)
    if (table := _at_path(wanted, path)) is not None and not is_ours(table):
        return text
    kept: list[str] = []
    held: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        if line.strip() in (_BEGIN, _END):
            continue
        if found := _table(line):
            inside = found[: len(path)] == list(path)
        if not inside:
            kept += [*held, line]
            held = []
        elif line.lstrip()[:1] in ("", "#"):
            held.append(line)  # it may belong to the table that comes next
        else:
            held = []
    rest = "".join([*kept, *held])
    if table is not None:
        del _at_path(wanted, path[:-1])[path[-1]]
    if _without_empty(_loaded(rest)) != _without_empty(wanted):
        raise NotMergeable(f"{'.'.join(path)} can't be taken out")
    return rest


def _loaded(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NotMergeable(str(error)) from None


def _table(line: str) -> list[str]:
    """The path of the table that begins with this line of TOML; empty when none does."""
    if not line.lstrip().startswith("["):
        return []
    try:
        value: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return []
    path = []
    while value:
        [(name, value)] = value.items()
        value = value[0] if isinstance(value, list) else value
        path.append(name)
    return path


def _at_path(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _without_empty(value: Any) -> Any:
    """Without tables that are there only since others are in them."""
    if not isinstance(value, dict):
        return value
    return {name: inner for name, given in value.items() if (inner := _without_empty(given)) != {}}


def _object(text: str, path: Sequence[str], default: object) -> tuple[str, _Node]:
    """The object or array at this path, which is made when there is none."""
    text = text if text.strip() else "{}\n"
    node = _scan_all(text)
    for depth in range(len(path) + 1):
        kind = dict if depth < len(path) else type(default)
        if not isinstance(node.value, kind):
            where = ".".join(path[:depth]) or "all of it"
            raise NotMergeable(f"{where} is not an {'object' if kind is dict else 'array'}")
        if depth == len(path):
            break
        if _at(node, path[depth : depth + 1]) is None:
            inner = {} if depth + 1 < len(path) else default
            text = _with(text, node, inner, f"{json.dumps(path[depth])}: ")
        node = _at(_scan_all(text), path[: depth + 1]) or node
    return text, node


def _at(node: _Node, path: Sequence[str]) -> _Node | None:
    for name in path:
        found = [item for item in node.items if item.name == name]
        if not found:
            return None
        node = found[-1]  # as every parser has it
    return node


def _with(text: str, node: _Node, value: object, named: str) -> str:
    """The text with one item more at the end of an object or array."""
    if not node.items:
        outer = _indent(text, node.start)
        inner = outer + "  "
        kept = text[: node.end - 1].rstrip()  # with what comments there are
        return f"{kept}\n{inner}{named}{_dumped(value, inner)}\n{outer}{text[node.end - 1 :]}"
    last = node.items[-1]
    comma = _COMMA.match(text, last.end, node.end)
    line = _REST_OF_LINE.match(text, last.end, node.end)
    if line is None:  # all in one line
        end = comma.end() if comma else last.end
        return f"{text[:end]}{' ' if comma else ', '}{named}{json.dumps(value, ensure_ascii=False)}{text[end:]}"
    indent = _indent(text, last.begins)
    added = f"\n{indent}{named}{_dumped(value, indent)}{',' if comma else ''}"
    if comma and comma.end() > line.end():
        line = comma
    return text[: last.end] + ("" if comma else ",") + text[last.end : line.end()] + added + text[line.end() :]


def _without(text: str, node: _Node, item: _Node) -> str:
    position = node.items.index(item)
    before = node.items[position - 1].end if position else 0
    comma = _COMMA.match(text, item.end, node.end)
    end = comma.end() if comma else item.end
    line_start = text.rfind("\n", 0, item.begins) + 1
    rest = _REST_OF_LINE.match(text, end)
    ends_with_comma = bool(comma) or position < len(node.items) - 1
    if line_start > node.start and not text[line_start : item.begins].strip() and rest:  # it has its lines for itself
        if rest[0].strip(" \t"):  # a comment behind it stays
            text = text[: item.begins] + text[end:].lstrip(" \t")
        else:
            text = text[:line_start] + text[rest.end() + 1 :]
        if before and not ends_with_comma and (found := _COMMA.match(text, before)):
            text = text[: found.end() - 1] + text[found.end() :]
        return text
    if before and not ends_with_comma and (found := _COMMA.match(text, before)):
        return text[: found.end() - 1] + text[found.end() : item.begins].rstrip() + text[end:]
    return text[: item.begins] + text[end:].lstrip(" \t")


def _indent(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _dumped(value: object, indent: str) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", f"\n{indent}")


def _scan_all(text: str) -> _Node:
    try:
        node = _scan(text, _skip(text, 0))
        if _skip(text, node.end) != len(text):
            raise NotMergeable(f"there is more after the end: {_place(text, node.end)}")
    except RecursionError:
        raise NotMergeable("it is nested too deeply") from None
    return node


def _scan(text: str, at: int) -> _Node:
    node = _Node(at, begins=at)
    opening = text[at : at + 1]
    if opening not in ("{", "["):
        match = _SCALAR.match(text, at)
        try:
            if match is None:
                raise ValueError
            node.value, node.end = json.loads(match[0]), match.end()
        except ValueError:
            raise NotMergeable(f"it is not JSON: {_place(text, at)}") from None
        return node
    closing = "}" if opening == "{" else "]"
    at = _skip(text, at + 1)
    while text[at : at + 1] != closing:
        begins, name = at, None
        if opening == "{":
            key = _scan(text, at)
            name = key.value
            at = _skip(text, key.end)
            if not isinstance(name, str) or text[at : at + 1] != ":":
                raise NotMergeable(f"it is not JSON: {_place(text, at)}")
            at = _skip(text, at + 1)
        item = _scan(text, at)
        item.begins, item.name = begins, name
        node.items.append(item)
        at = _skip(text, item.end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != closing:
            raise NotMergeable(f"it is not JSON: {_place(text, at)}")
    node.end = at + 1
    node.value = {item.name: item.value for item in node.items} if opening == "{" else [i.value for i in node.items]
    return node


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _place(text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    return f"line {line}, column {at - text.rfind(chr(10), 0, at)}"
