"""Batch jobs over the whole history."""
