"""From requests to tokens, scores and vectors.

session   texts that stay in the cache, and their files
embed     texts to vectors and scores
core      the engine core (the step), its thread, the request queue, and where requests are handed in
prefix    which inputs each cache sequence holds, who may reuse them, and the cells that go with them
observe   metrics, timeline, log
load      from a path to weights, cache and executors with all memory taken
execute   from a batch to logits
schedule  pure: requests as they wait and run, what is computed next, and when its text may be delivered
request   a caller's ends of a request: options, prompts, inputs, channel, stream, group, results

A room imports rooms below it only: pyproject.toml has the floors. Rooms on one floor know nothing of each other.
"""
