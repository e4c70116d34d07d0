"""From requests to tokens.

loading    path and options -> backend, weights, model, cache, executor, with all memory taken
executor   one batch -> logits: builds graphs, reuses them, computes
request    one generation as a state machine over plain values
stream     the caller's end of a request
emit       token ids -> text that never has to be taken back
loop       the thread that owns the executor and serves requests
"""
