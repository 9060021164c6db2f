"""The Dagster side that is no asset, resource or sensor: partitions, jobs, I/O manager, history, launch."""
