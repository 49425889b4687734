"""What is generated for a deployment: charts' schemas and READMEs, the Grafana dashboard."""
