"""Llama 3.2 Vision: `general.architecture` = mllama.

model        the text model and, where the file has one, the vision tower
text         decoder with cross-attention layers
vision       vision tower and projector
preprocess   pictures to tiles of patches
options      sizes of both parts, read from the metadata
"""
