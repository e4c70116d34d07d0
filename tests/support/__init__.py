"""What tests of several rooms share: tiny models, waiting with a limit, workers, sizes of the quick suite."""
