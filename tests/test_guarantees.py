"""docs/guarantees.md: every promise names tests, and they are there."""

import re

from conftest import REPOSITORY

DOC = (REPOSITORY / "docs" / "guarantees.md").read_text()


def test_every_test_that_is_named_is_there() -> None:
    sources = "".join(path.read_text() for path in (REPOSITORY / "tests").glob("test_*.py"))
    named = re.findall(r"`(test_\w+|Test\w+)`", DOC)
    assert len(named) > 25
    assert [name for name in named if f"def {name}(" not in sources and f"{name} = " not in sources] == []


def test_every_promise_names_a_test() -> None:
    for section in DOC.split("\n## ")[1:]:
        assert re.search(r"^- .*`[tT]est", section, re.MULTILINE), section.partition("\n")[0]
