"""The laboratory: studies, simulations, benchmarks and the demo of gravac. Nothing of the service depends on it."""
