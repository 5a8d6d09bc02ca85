"""A chaos test: real trainings and controllers, failures and lies at random moments, and checks that nothing was lost.

``python -m tools.chaos --events 500 --seed 1`` from the repository root. An *episode* is one job: a controller, one or
more *lives* of its training (two ranks), and a dozen events. ``episode.py`` runs it, ``events.py`` says what can
happen, ``checks.py`` what must hold afterwards.
"""
