"""Thin ConfigurableResources over the ports, one module a resource: they hold configuration and build clients."""
