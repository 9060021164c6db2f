"""Sensors: they take tickets in, move them on after each run, watch for decisions, and clean up."""
