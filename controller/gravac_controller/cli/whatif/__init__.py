"""``gravac whatif``: predict other networks, ranks, codecs and policies from a trace."""
