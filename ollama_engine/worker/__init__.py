"""`ollama-engine worker`: a process for each program that computes here, and weights that outlast them."""
