"""Codecs that send every element in few bits."""
