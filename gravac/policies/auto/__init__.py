"""The auto policy: chooses codec and strength by predicted useful throughput, T_sys · η.

``plans.py`` names the plans, ``table.py`` has what is known of each before the job, ``beliefs.py`` what a job has shown
of them, ``choose.py`` is the rule that chooses, and ``say.py`` puts its choice into words.
"""
