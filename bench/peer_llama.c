// What of llama.cpp is measured in one process, as plain C functions for ctypes: its structures are passed by value and
// change from version to version, so that only a compiler gets them right.

#include "llama.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void quiet(enum ggml_log_level level, const char * text, void * data) {
    (void) level; (void) text; (void) data;
}

void peer_start(void) {
    llama_log_set(quiet, NULL);
    llama_backend_init();
}

// -- sampling ---------------------------------------------------------------------------------------------------------

struct peer_sampling {
    int32_t top_k, mirostat, n_vocab;
    float top_n_sigma, typical_p, top_p, min_p, xtc_probability, xtc_threshold, temperature, dynatemp_range,
        dynatemp_exponent, mirostat_tau, mirostat_eta, adaptive_target, adaptive_decay;
    float dry_multiplier, dry_base;
    int32_t dry_allowed_length, dry_penalty_last_n;
};

// As llama.cpp's programs build it; the vocabulary that DRY takes is for sequence breakers alone.
struct llama_sampler * peer_chain(const struct peer_sampling * p, uint32_t seed) {
    struct llama_sampler * chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    if (p->temperature <= 0) {
        llama_sampler_chain_add(chain, llama_sampler_init_greedy());
        return chain;
    }
    if (p->mirostat) {
        llama_sampler_chain_add(chain, llama_sampler_init_temp(p->temperature));
        llama_sampler_chain_add(chain, p->mirostat == 1
            ? llama_sampler_init_mirostat(p->n_vocab, seed, p->mirostat_tau, p->mirostat_eta, 100)
            : llama_sampler_init_mirostat_v2(seed, p->mirostat_tau, p->mirostat_eta));
        return chain;
    }
    llama_sampler_chain_add(chain, llama_sampler_init_dry(
        NULL, p->dry_multiplier, p->dry_base, p->dry_allowed_length, p->dry_penalty_last_n, NULL, 0));
    llama_sampler_chain_add(chain, llama_sampler_init_top_n_sigma(p->top_n_sigma));
    if (p->top_k > 0) {
        llama_sampler_chain_add(chain, llama_sampler_init_top_k(p->top_k));
    }
    llama_sampler_chain_add(chain, llama_sampler_init_typical(p->typical_p, 0));
    llama_sampler_chain_add(chain, llama_sampler_init_top_p(p->top_p, 0));
    llama_sampler_chain_add(chain, llama_sampler_init_min_p(p->min_p, 0));
    llama_sampler_chain_add(chain, llama_sampler_init_xtc(p->xtc_probability, p->xtc_threshold, 0, seed));
    llama_sampler_chain_add(chain, llama_sampler_init_temp_ext(
        p->temperature, p->dynatemp_range, p->dynatemp_exponent));
    llama_sampler_chain_add(chain, p->adaptive_target >= 0
        ? llama_sampler_init_adaptive_p(p->adaptive_target, p->adaptive_decay, seed)
        : llama_sampler_init_dist(seed));
    return chain;
}

void peer_accept(struct llama_sampler * chain, int32_t token) {
    llama_sampler_accept(chain, token);
}

void peer_chain_free(struct llama_sampler * chain) {
    llama_sampler_free(chain);
}

// As llama_sampler_sample does it: candidates are written anew from the row, then go through the chain.
int peer_sample(struct llama_sampler * chain, const float * logits, int n_vocab, llama_token_data * candidates) {
    for (int i = 0; i < n_vocab; ++i) {
        candidates[i] = (llama_token_data) { i, logits[i], 0.0f };
    }
    llama_token_data_array row = { candidates, n_vocab, -1, false };
    llama_sampler_apply(chain, &row);
    return row.data[row.selected].id;
}

// -- models -----------------------------------------------------------------------------------------------------------

struct llama_model * peer_model(const char * path, bool vocab_only) {
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = vocab_only;
    return llama_model_load_from_file(path, params);
}

void peer_model_free(struct llama_model * model) {
    llama_model_free(model);
}

int peer_tokenize(const struct llama_model * model, const char * text, int length, int32_t * tokens, int capacity,
                  bool parse_special) {
    return llama_tokenize(llama_model_get_vocab(model), text, length, tokens, capacity, false, parse_special);
}

struct llama_context * peer_context(struct llama_model * model, int n_ctx, int n_batch, int threads) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = n_ctx;
    params.n_batch = n_batch;
    params.n_ubatch = n_batch;
    params.n_threads = threads;
    params.n_threads_batch = threads;
    return llama_init_from_model(model, params);
}

// A context of `exact` arithmetic: f32 keys and values, plain attention.
struct llama_context * peer_exact_context(struct llama_model * model, int n_ctx, int threads) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = n_ctx;
    params.n_batch = n_ctx;
    params.n_ubatch = n_ctx;
    params.n_threads = threads;
    params.n_threads_batch = threads;
    params.type_k = GGML_TYPE_F32;
    params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    return llama_init_from_model(model, params);
}

// A context whose keys and values have a type, by ggml's name; NULL for a name that ggml lacks.
struct llama_context * peer_typed_context(struct llama_model * model, int n_ctx, int threads, const char * type) {
    struct llama_context_params params = llama_context_default_params();
    int kind = 0;
    while (kind < GGML_TYPE_COUNT && strcmp(ggml_type_name((enum ggml_type) kind), type) != 0) {
        ++kind;
    }
    params.n_ctx = n_ctx;
    params.n_batch = n_ctx;
    params.n_threads = threads;
    params.n_threads_batch = threads;
    params.type_k = (enum ggml_type) kind;
    params.type_v = (enum ggml_type) kind;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    return kind < GGML_TYPE_COUNT ? llama_init_from_model(model, params) : NULL;
}

void peer_context_free(struct llama_context * context) {
    llama_free(context);
}

// One token behind the last one; waits for its logits.
int peer_decode(struct llama_context * context, int32_t token) {
    const int status = llama_decode(context, llama_batch_get_one(&token, 1));
    llama_synchronize(context);
    return status;
}

// Nothing is in the context any more.
void peer_clear(struct llama_context * context) {
    llama_memory_clear(llama_get_memory(context), true);
}

// The context is full: after the first `keep` positions the older half is forgotten, and the others move down.
static int discard_half(struct llama_context * context, int n, int keep) {
    const int n_discard = (n - keep) / 2;
    llama_memory_t memory = llama_get_memory(context);
    llama_memory_seq_rm(memory, 0, keep, keep + n_discard);
    llama_memory_seq_add(memory, 0, keep + n_discard, n, -n_discard);
    return n - n_discard;
}

// The most likely tokens after a prompt, in an empty context, up to `most` or an end token, which is not among them. A
// full context is shifted, behind its first `keep` positions. `gaps`: how much more likely each was than the second, in
// nats. Returns how many, or -1.
int peer_greedy(struct llama_context * context, const struct llama_model * model, int32_t * prompt, int n_prompt,
                int32_t * tokens, float * gaps, int most, int keep) {
    const struct llama_vocab * vocab = llama_model_get_vocab(model);
    const int n_vocab = llama_vocab_n_tokens(vocab);
    peer_clear(context);
    if (llama_decode(context, llama_batch_get_one(prompt, n_prompt))) {
        return -1;
    }
    int n_context = n_prompt;
    for (int n = 0; n < most; ++n) {
        const float * logits = llama_get_logits_ith(context, -1);
        int best = 0, second = -1;
        for (int i = 1; i < n_vocab; ++i) {
            if (logits[i] > logits[best]) {
                second = best;
                best = i;
            } else if (second < 0 || logits[i] > logits[second]) {
                second = i;
            }
        }
        if (llama_vocab_is_eog(vocab, best)) {
            return n;
        }
        tokens[n] = best;
        gaps[n] = logits[best] - logits[second];
        if (n_context == (int) llama_n_ctx(context)) {
            n_context = discard_half(context, n_context, keep);
        }
        if (n + 1 < most && llama_decode(context, llama_batch_get_one(&tokens[n], 1))) {
            return -1;
        }
        n_context++;
    }
    return most;
}

// The log-probability of each of the tokens [first, n) after those before it, of which the first `kept` are in the
// context; `greedy`: whether each was the most probable. Returns 0, or what went wrong.
int peer_score(struct llama_context * context, const struct llama_model * model, const int32_t * tokens, int n, int kept,
               int first, float * logprobs, bool * greedy) {
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    llama_memory_seq_rm(llama_get_memory(context), 0, kept, -1);
    for (int i = kept; i + 1 < n; ++i, ++batch.n_tokens) {
        batch.token[batch.n_tokens] = tokens[i];
        batch.pos[batch.n_tokens] = i;
        batch.n_seq_id[batch.n_tokens] = 1;
        batch.seq_id[batch.n_tokens][0] = 0;
        batch.logits[batch.n_tokens] = i + 1 >= first;
    }
    const int status = llama_decode(context, batch);
    for (int i = first; i < n && !status; ++i) {
        const float * logits = llama_get_logits_ith(context, i - 1 - kept);
        double sum = 0;
        int best = 0;
        for (int k = 1; k < n_vocab; ++k) {
            best = logits[k] > logits[best] ? k : best;
        }
        for (int k = 0; k < n_vocab; ++k) {
            sum += exp(logits[k] - logits[best]);
        }
        logprobs[i - first] = (float) (logits[tokens[i]] - logits[best] - log(sum));
        greedy[i - first] = best == tokens[i];
    }
    llama_batch_free(batch);
    return status;
}

// Forgets the first position and moves the others down by one; keys turn when the next token is decoded.
void peer_shift(struct llama_context * context) {
    llama_memory_t memory = llama_get_memory(context);
    llama_memory_seq_rm(memory, 0, 0, 1);
    llama_memory_seq_add(memory, 0, 1, -1, -1);
}
