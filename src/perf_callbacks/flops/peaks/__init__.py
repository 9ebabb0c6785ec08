"""Peaks of devices: published, given or measured."""
