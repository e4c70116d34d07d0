"""Families that read images, a file of cases each; see harness.py for how to add one."""
