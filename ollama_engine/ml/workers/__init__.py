"""Devices of other processes and machines, reached through ggml's RPC."""
