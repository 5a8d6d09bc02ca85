"""The GraVAC policy: search the ladder of CFs for the best T_comp, then hold it."""
