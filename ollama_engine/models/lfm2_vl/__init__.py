"""LFM2-VL: what LFM2 reads images with. Source: Amini et al. 2025 (arXiv 2511.23404)."""
