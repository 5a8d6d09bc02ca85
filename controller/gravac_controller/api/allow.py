"""Which methods a path takes. The framework's router names only those of the first route that fits the path."""

import re
from collections.abc import Iterable

from fastapi import APIRouter
from fastapi.routing import APIRoute


class Allowed:
    """The methods by path, of all routes of these routers."""

    def __init__(self, routers: Iterable[APIRouter]) -> None:
        self._routes: list[tuple[re.Pattern[str], set[str]]] = [
            (route.path_regex, set(route.methods or ()))
            for router in routers
            for route in router.routes
            if isinstance(route, APIRoute)
        ]

    def methods(self, path: str) -> str:
        """As the Allow header has them, HEAD wherever GET is; "" for a path of none of these routes."""
        found = set().union(*(methods for regex, methods in self._routes if regex.match(path)))
        return ", ".join(sorted(found | ({"HEAD"} if "GET" in found else set())))
