"""Devices: those of this machine, their memory, and pure plans of which layer goes on which device."""
