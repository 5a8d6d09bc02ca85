"""Data to train on: text of installed source code, and images rendered or installed."""
