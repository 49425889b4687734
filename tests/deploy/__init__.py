"""The charts, the image, the alerts and the dashboard, tried without a cluster and without a container engine."""
