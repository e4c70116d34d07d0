"""What the engine reports of its steps and requests: metrics, timeline, log."""
