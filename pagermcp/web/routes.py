"""Which view a path is for, by looking it up.

Werkzeug tries rules by a function that calls itself, made anew for each request: 8 objects that only the garbage
collector can free, which then stops the relay for a tenth of a second every 1,500 pages. All rules here are plain, so
most paths can be looked up. Whatever is not found, or is not for its method, goes Werkzeug's way.
"""

import re
from collections.abc import Iterable
from typing import Any

from werkzeug.routing import Map, MapAdapter, Rule

_VARIABLE = re.compile(r"<(\w+)>")

Parts = tuple[str | None, ...]
"""A path's segments, with None for one that may be anything."""


class Routes:
    """Rules whose segments are fixed, but for at most one."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules: dict[Parts, list[tuple[Rule, str | None]]] = {}
        places: set[tuple[int, int]] = set()  # (number of segments, the one that may be anything)
        for rule in rules:
            parts: list[str | None] = list(rule.rule.split("/"))
            variables = [place for place, part in enumerate(parts) if "<" in (part or "")]
            name = None
            for place in variables:
                named = _VARIABLE.fullmatch(parts[place] or "")
                name, parts[place] = named and named[1], None
                places.add((len(parts), place))
            if len(variables) < 2 and (name or not variables):
                self._rules.setdefault(tuple(parts), []).append((rule, name))
        self._places = sorted(places)

    def find(self, path: str, method: str) -> tuple[Rule, dict[str, Any]] | None:
        """The rule for this path and method, and what its variable stands for; None when there is none here."""
        parts = tuple(path.split("/"))
        for rule, _ in self._rules.get(parts, ()):
            if rule.methods and method in rule.methods:
                return rule, dict(rule.defaults or {})
        for length, place in self._places:
            if length == len(parts) and parts[place]:
                for rule, name in self._rules.get((*parts[:place], None, *parts[place + 1 :]), ()):
                    if rule.methods and method in rule.methods and name:
                        return rule, {**(rule.defaults or {}), name: parts[place]}
        return None


class Adapter(MapAdapter):
    """What Flask asks for the rule of a request."""

    def __init__(self, url_map: Map, routes: Routes, root: str, scheme: str, path: str, method: str) -> None:
        super().__init__(url_map, "", root, "", scheme, path, method)
        self._routes = routes

    def match(self, *arguments: Any, **more: Any) -> Any:
        plain = not arguments and more == {"return_rule": True}  # as Flask asks
        found = self._routes.find(self.path_info, self.default_method) if plain else None
        return found or super().match(*arguments, **more)
