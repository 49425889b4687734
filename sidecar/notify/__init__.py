"""Announces dead letters to a webhook."""
