"""GLM-OCR: what GLM-4 reads images with. Source: GLM-V team 2025 (arXiv:2507.01006), transformers' GlmOcr."""
