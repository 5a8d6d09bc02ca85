"""The control path of a window: collect what steps measured, report it, and plan with the answer."""
