"""The HTTP interface: routes, access, problems, OpenAPI. The only room that knows HTTP."""
