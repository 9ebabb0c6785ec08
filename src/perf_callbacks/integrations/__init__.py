"""Integrations: events of each framework, translated for the session."""
