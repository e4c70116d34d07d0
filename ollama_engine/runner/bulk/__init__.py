"""Many prompts, one after the other: answers in order, and a checkpoint, so that a job that is killed goes on."""
