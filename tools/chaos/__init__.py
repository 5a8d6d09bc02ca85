"""The chaos test: real trainings and controllers meet failures and invalid answers at random moments.

Run ``python -m tools.chaos --events 500 --seed 1`` from the repository root. An *episode* is one job: a controller, one
or more *launches* of its training (two ranks), and about ten events. ``episode.py`` runs it, ``events.py`` has what can
happen, ``checks.py`` has what must hold afterwards, ``peers/`` answers in a controller's place.
"""
