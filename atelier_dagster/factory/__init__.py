"""The domain: pure data and decisions. No I/O, no clock, no Dagster, no vendor names."""
