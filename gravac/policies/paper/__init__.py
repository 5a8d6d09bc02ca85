"""The GraVAC policy: search the ladder of CFs for the best T_comp, then hold it.

``policy.py`` chooses between the repaired rules (``explore.py``, ``hold.py``) and the printed ones (``printed.py``).
``algorithm.py`` is Algorithm 1 in plain Python, to read.
"""
