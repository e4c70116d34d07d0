"""A request and its caller's ends: options, prompts, channel, stream, group, results."""
