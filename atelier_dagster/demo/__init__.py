"""The demo: a scripted model, sample repositories and tickets. The product never imports it."""

from atelier_dagster.demo.catalogue import DemoTicket, Expectation, catalogue, get_ticket

__all__ = ["DemoTicket", "Expectation", "catalogue", "get_ticket"]
