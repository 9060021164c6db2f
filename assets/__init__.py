"""The journey as Dagster assets, one module a stage. Thin: decisions are the domain's, acts are delivery's."""
