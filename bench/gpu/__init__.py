"""`make gpu-check`: what this engine computes on a GPU, beside the CPU and llama.cpp; gpu_check.py begins it."""
