"""The journey as Dagster assets, one module a stage. Each asset is thin: decisions are the domain's, acts are delivery's."""
