"""A batch is computed: cells are found, the graph is built or used again, and rows that samplers need are fetched."""
