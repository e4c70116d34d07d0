"""Models in processes of their own: a protocol of JSON lines, the process that speaks it, and the model at this end."""
