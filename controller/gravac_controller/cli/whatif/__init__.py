"""``gravac whatif`` and ``gravac doctor``: predict other networks, ranks, codecs and policies, and advise."""
