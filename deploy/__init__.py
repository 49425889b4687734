"""Generates the charts' schemas and READMEs, and the Grafana dashboard."""
