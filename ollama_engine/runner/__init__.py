"""From requests to tokens.

loading    path and options -> backend, weights, model, cache, executor, with all memory taken (load_errors: or not)
executor   one batch -> logits: builds graphs, reuses them, computes
request    one generation as a state machine over plain values
stream     the caller's end of a request
emit       token ids -> text that never has to be taken back
loop       the thread that owns the executor and serves requests
submission       where requests are handed in (prompts: what may be one)
session    a text that stays in the cache: answer, task and hold are its parts, session_file and fingerprint its files

Bookkeeping without a tensor, a thread or a clock:

inputs     what a sequence is made of, in arrays, and where it may be cut
scheduler  who computes what in the next step
overflow   what a sequence gives up when it outgrows its context
histories  what each cache sequence holds, and who may reuse it (history: one of them)
metrics    counters
trace      the latest steps and requests as a timeline
"""
