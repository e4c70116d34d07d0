"""Nemotron 3 and 4, and Minitron, dense: `general.architecture` = nemotron.

Norms that subtract the mean, whose weights are published as differences from 1 (conversion adds it); half of each head
rotates; no gate, and the square of ReLU. Source: Parmar et al. 2024.
"""

from __future__ import annotations

from ollama_engine import nn
from ollama_engine.models import starcoder2


class Layer(starcoder2.Layer):
    mlp = nn.Part(nn.SquaredMLP)


class Nemotron(starcoder2.StarCoder2):
    architecture = "nemotron"

    layers = nn.Blocks(Layer, "n_layer")
