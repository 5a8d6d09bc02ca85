"""``gravac export``: a trace as a table, for TensorBoard, or for Prometheus."""
