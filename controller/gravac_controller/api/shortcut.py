"""The short way of the one request that comes all the time: a window of each job, again and again.

FastAPI looks through all routes, solves dependencies and wraps each request in several layers, which costs about as
much computing as deciding on the window. The route is declared there like every other, for its documentation and for
odd requests; what is plainly meant for it goes to its endpoint at once and is answered alike.
"""

import re
from collections.abc import Callable, Iterable

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from gravac_controller.api.parameters import JOB_NAME
from gravac_controller.api.problems import ApiError, answer_of


class Shortcut:
    """ASGI middleware: POSTs to ``path``, which names a ``{job}``, go to that route's ``endpoint(job, request)``.

    ``refused`` is told the reason of each refusal. Where the routers have no such route, nothing is short.
    """

    def __init__(
        self, app: ASGIApp, routers: Iterable[APIRouter], path: str, refused: Callable[[str], None]
    ) -> None:
        self._app, self._refused = app, refused
        before, after = map(re.escape, path.split("{job}"))
        self._path = re.compile(f"{before}({JOB_NAME}){after}")
        taking = (
            route
            for router in routers
            for route in router.routes
            if isinstance(route, APIRoute) and route.path == path and "POST" in (route.methods or ())
        )
        self._route = next(taking, None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._route
        ours = scope["type"] == "http" and scope["method"] == "POST" and self._path.fullmatch(scope["path"])
        if not ours or route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route  # as FastAPI does: requests are counted by route
        try:
            answer = await route.endpoint(job=ours[1], request=Request(scope, receive))
        except ApiError as error:
            self._refused(error.reason)
            answer = answer_of(error)
        await answer(scope, receive, send)
