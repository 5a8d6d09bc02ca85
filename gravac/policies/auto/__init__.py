"""The auto policy: chooses codec and strength by predicted useful throughput, T_sys · η.

``space.py`` lists the plans, ``timemodel.py`` predicts the steps of untried ones, ``outlook.py`` ranks them, and
``rule.py`` decides.
"""
