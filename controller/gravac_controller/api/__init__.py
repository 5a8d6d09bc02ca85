"""The HTTP interface: routes, access control, error answers, OpenAPI. Rooms below it do not know HTTP."""
