"""Codecs that send some elements as they are: the largest, those above a threshold, or random ones."""
