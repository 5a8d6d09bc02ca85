"""The auto policy: chooses codec and strength by predicted useful throughput, T_sys · η.

``space.py`` lists the plans, ``timemodel.py`` predicts the steps of untried ones, ``outlook.py`` ranks them,
``learning.py`` takes from a window what it says of them, and ``rule.py`` decides.
"""
