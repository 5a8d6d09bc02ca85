"""Controllers, browsers and recorded jobs for tests, benchmarks and pages."""
