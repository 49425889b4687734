"""Runs a real Apache Kafka on this machine, without Docker."""
