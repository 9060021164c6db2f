"""Atelier: a software factory on Dagster. Nothing is imported here, so that importing one room stays cheap."""
