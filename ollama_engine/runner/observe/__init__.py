"""Reports about steps and requests: metrics, timeline, log."""
