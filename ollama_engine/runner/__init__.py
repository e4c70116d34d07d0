"""From requests to tokens, scores and vectors.

session   texts that stay in the cache, and their files
embed     texts to vectors and scores
core      the engine core (the step), its thread, the request queue, and where requests are handed in
prefix    which inputs each cache sequence holds, who may reuse them, and the cells that go with them
observe   metrics, timeline, log
load      from a path to weights, cache and executors with all memory taken; from a batch to logits
schedule  pure: requests, their inputs, what is computed next, and when its text may be delivered
request   a caller's ends of a request: options, prompts, channel, stream, group, results

A room imports rooms below it only; embed and session, prefix and observe, load and schedule know nothing of each other.
"""
