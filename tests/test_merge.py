"""Changes to other programs' configuration, as text."""

import json
import re
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagermcp.client.merge import NotMergeable, add, drop, put, put_table, take, take_table

OURS = {"hooks": [{"type": "command", "command": "pagermcp hook stop"}]}
WITH_COMMENTS = """{
  // mine
  "$schema": "x", /* c */
  "mcp": {
    "other": {"type": "local"} // note
  },
  "list": [1, 2], // end
}
"""


def is_ours(value: Any) -> bool:
    return "pagermcp" in json.dumps(value)


TOKEN = re.compile(r'(?P<string>"(?:[^"\\]|\\.)*")|(?P<comment>//[^\n]*|/\*.*?\*/)', re.DOTALL)


def comments(text: str) -> list[str]:
    return [match["comment"] for match in TOKEN.finditer(text) if match["comment"]]


def parsed(text: str) -> Any:
    """By another way than the code under test: without comments and trailing commas it is JSON."""
    plain = TOKEN.sub(lambda match: match["string"] or "", text)
    commas = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])')
    return json.loads(commas.sub(lambda match: match[1] or "", plain))


def test_a_member_goes_in_beside_the_others_and_leaves_comments_where_they_are() -> None:
    text = put(WITH_COMMENTS, ["mcp", "pager"], {"command": ["pagermcp", "mcp"]})
    assert parsed(text)["mcp"] == {"other": {"type": "local"}, "pager": {"command": ["pagermcp", "mcp"]}}
    assert '"other": {"type": "local"}, // note\n    "pager": {\n      "command": [\n' in text
    assert put(text, ["mcp", "pager"], {"command": ["pagermcp", "mcp"]}) == text
    assert drop(text, ["mcp", "pager"]) == WITH_COMMENTS


def test_after_a_trailing_comma_what_goes_in_has_one_too() -> None:
    text = put(WITH_COMMENTS, ["new", "deep"], 1)
    assert '"list": [1, 2], // end\n  "new": {\n    "deep": 1\n  },\n}' in text
    assert drop(text, ["new", "deep"]) == WITH_COMMENTS


def test_a_member_that_is_there_is_changed_in_its_place() -> None:
    text = put(WITH_COMMENTS, ["mcp", "other"], {"type": "remote"})
    assert text == WITH_COMMENTS.replace('{"type": "local"}', '{\n      "type": "remote"\n    }')


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "{\n}\n",
        '{"a":1}',
        '{"hooks":{"Stop":[{"x":1}]}}',
        '{"hooks":{"Stop":[{"x":1},]},}',
        '{\n  "hooks": {\n    "Stop": [\n      {"x": 1}, // one\n      {"y": 2} // two\n    ]\n  }\n}\n',
        '{\n\t"a": 1, // "{,"\n\t"hooks": {"Start": []}\n}',
    ],
)
def test_an_element_goes_in_once_and_out_again(text: str) -> None:
    there = parsed(text).get("hooks", {}).get("Stop", [])
    once = add(text, ["hooks", "Stop"], OURS, is_ours)
    assert parsed(once)["hooks"]["Stop"] == [*there, OURS]
    assert add(once, ["hooks", "Stop"], OURS, is_ours) == once
    newer = {**OURS, "timeout": 5}
    assert parsed(add(once, ["hooks", "Stop"], newer, is_ours))["hooks"]["Stop"] == [*there, newer]
    assert parsed(take(once, ["hooks", "Stop"], is_ours)) == parsed(text)
    assert comments(take(once, ["hooks", "Stop"], is_ours)) == comments(text)


def test_what_is_empty_becomes_an_object() -> None:
    assert json.loads(put("", ["a"], 1)) == {"a": 1}
    assert json.loads(add("\n", ["a"], OURS, is_ours)) == {"a": [OURS]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": }', "it is not JSON: line 1, column 7"),
        ('{"a": 1', "it is not JSON"),
        ('{"a": 1} x', "more after the end"),
        ('{\n"a" 1}', "line 2, column 5"),
        ("{1: 2}", "it is not JSON"),
        ('{"a": [1 2]}', "it is not JSON"),
        ('{"mcp": []}', "mcp is not an object"),
        ('{"mcp": "x"}', "mcp is not an object"),
        ('[1, "not an object"]', "all of it is not an object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": "\n"}', "it is not JSON"),
        ("{/* ", "it is not JSON"),
    ],
)
def test_what_is_no_such_file_is_left_alone(text: str, says: str) -> None:
    with pytest.raises(NotMergeable, match=re.escape(says)):
        put(text, ["mcp", "pager"], 1)


def test_a_comma_in_a_comment_is_none() -> None:
    text = '{\n  "plugins": {\n    "x": true // one, two\n  } // three, four\n}\n'
    after = put(text, ["plugins", "p"], True)
    assert after == text.replace("true //", "true, //").replace("two\n", 'two\n    "p": true\n')
    assert drop(after, ["plugins", "p"]) == text
    assert parsed(drop(text, ["plugins"])) == {}


NAMES = st.sampled_from(["a", "b", "mcp", 'q"\\', "ü"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(
    before=st.dictionaries(NAMES, VALUES, max_size=4),
    path=st.lists(NAMES, min_size=1, max_size=3),
    value=VALUES,
    indent=st.sampled_from([None, 2, "\t"]),
)
def test_any_object_keeps_all_else(before: dict[str, Any], path: list[str], value: Any, indent: Any) -> None:
    text = json.dumps(before, indent=indent)
    expected = json.loads(text)
    place = expected
    for name in path[:-1]:
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            with pytest.raises(NotMergeable):
                put(text, path, value)
            return
    was_there = path[-1] in place
    place[path[-1]] = value
    after = put(text, path, value)
    assert json.loads(after) == expected
    assert put(after, path, value) == after
    if not was_there:
        assert path[-1] not in str_keys(json.loads(drop(after, path)), path[:-1])


COMMENTS = st.sampled_from(["", "", " ", "\n", "// a, b {\n", "/* c, [ */", "\n  // d\n", '/* " */\n'])


@st.composite
def with_comments(draw: st.DrawFn, value: Any) -> str:
    """This value as JSON with comments, line breaks and trailing commas wherever they may be."""
    if not isinstance(value, dict | list):
        return json.dumps(value)
    items = [
        draw(COMMENTS)
        + (json.dumps(name) + draw(COMMENTS) + ":" + draw(COMMENTS) if isinstance(value, dict) else "")
        + draw(with_comments(inner))
        + draw(COMMENTS)
        for name, inner in (value.items() if isinstance(value, dict) else enumerate(value))
    ]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return opening + ",".join(items) + draw(st.sampled_from(["", ","] if items else [""])) + draw(COMMENTS) + closing


@given(st.data(), st.dictionaries(NAMES, VALUES, max_size=4), VALUES)
def test_comments_anywhere_stay_and_the_rest_is_as_it_was(
    data: st.DataObject, before: dict[str, Any], value: Any
) -> None:
    text = data.draw(with_comments(before))
    after = put(text, ["new", "ours"], value)
    assert parsed(after) == {**before, "new": {"ours": value}}
    assert comments(after) == comments(text)
    without = drop(after, ["new"])
    assert parsed(without) == before
    assert [comment for comment in comments(text) if comment not in comments(without)] == []


def str_keys(value: Any, path: list[str]) -> list[str]:
    for name in path:
        value = value.get(name, {})
    return list(value)


TABLE = '[mcp_servers.pager]\ncommand = "pagermcp"\nenv_vars = ["A"] # why\n\n[mcp_servers.pager.tools.ack]\nx = "y"\n'
PATH = ["mcp_servers", "pager"]


def put_in(text: str, lines: str = TABLE) -> str:
    return put_table(text, lines, is_ours)


def take_out(text: str) -> str:
    return take_table(text, PATH, is_ours)


def test_a_table_goes_to_the_end_of_toml_once_and_out_again() -> None:
    mine = 'model = "x" # mine\n[mcp_servers.other]\ncommand = "o"'
    text = put_in(mine)
    assert tomllib.loads(text)["mcp_servers"]["other"] == {"command": "o"}
    assert tomllib.loads(text)["mcp_servers"]["pager"] == tomllib.loads(TABLE)["mcp_servers"]["pager"]
    assert text.startswith(mine + "\n")
    assert put_in(text) == text
    assert put_in(text, TABLE + "z = 1\n").count("[mcp_servers.pager]") == 1
    assert take_out(text) == mine + "\n"
    assert take_out(mine) == mine


def test_what_codex_writes_before_the_last_mark_stays_and_what_it_does_to_ours_does_not_matter() -> None:
    mine = '# mine\nmodel = "x"\n'
    state = '\n# trusted\n[hooks.state]\n\n[hooks.state."/a.json:stop:0:0"]\ntrusted_hash = "h"\n'
    marks = put_in("").splitlines(keepends=True)
    for text in (put_in(mine).replace(marks[-1], state + marks[-1]), mine + "\n" + TABLE + state + marks[-1]):
        assert put_in(text) == text
        assert tomllib.loads(take_out(text)) == tomllib.loads(mine + state)
        again = put_in(text, TABLE.replace('"A"', '"B"'))
        assert tomllib.loads(take_out(again)) == tomllib.loads(mine + state)
        assert again.count("# trusted") == again.count(marks[0]) == again.count(marks[-1]) == 1


@pytest.mark.parametrize("text", ["x = ", '[mcp_servers.pager]\ncommand = "mine"\n', "mcp_servers = 1"])
def test_toml_that_is_wrong_or_has_it_already_is_left_alone(text: str) -> None:
    with pytest.raises(NotMergeable):
        put_in(text)


@pytest.mark.parametrize(
    "text",
    [
        'mcp_servers = { pager = { command = "pagermcp" } }\n',
        '[mcp_servers]\npager = { command = "pagermcp" }\n',
        '[mcp_servers.pager]\ncommand = "pagermcp"\nx = """\n[other]\n"""\n',
    ],
)
def test_a_table_that_can_t_be_taken_out_as_lines_is_left_alone(text: str) -> None:
    with pytest.raises(NotMergeable):
        take_out(text)


def test_somebody_else_s_table_of_that_name_is_not_taken_out() -> None:
    text = '[mcp_servers.pager]\ncommand = "mine"\n'
    assert take_out(text) == text
