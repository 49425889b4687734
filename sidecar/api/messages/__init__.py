"""Calls about single messages."""
