/* Attention of few query tokens over the paged KV pool, one pass with a running softmax.

   A task is one token and some heads of one KV head. It walks the token's blocks; the sixteen scores of a block are
   turned into weights relative to the largest score so far, and what was summed before is scaled down when that grows
   (Milakov and Gimelshein 2018, algorithm 3). The output row is the accumulator, so nothing is allocated. Heads are
   computed alike however they are grouped into tasks. */
#ifndef POOT_ATTENTION_H
#define POOT_ATTENTION_H

#include <math.h>

#include "poot_native.h"
#include "vector.h"

#define KV_BLOCK 16
#define BLOCK_VECTORS (KV_BLOCK / LANES)

/* scores[j] = the product of q[head_dim] and key j, for all sixteen keys of a block. */
INLINE void score_block(const float *q, const float *keys, int64_t stride, int64_t head_dim, float *scores) {
    for (int first = 0; first < KV_BLOCK; first += LANES) {
        vf sums[LANES];
        UNROLL for (int j = 0; j < LANES; j++) sums[j] = splat(0.0f);
        int64_t d = 0;
        for (; d + LANES <= head_dim; d += LANES) {
            vf part = load(q + d);
            UNROLL for (int j = 0; j < LANES; j++)
                sums[j] = fma_vf(part, load(keys + (first + j) * stride + d), sums[j]);
        }
        store(scores + first, sum_each(sums));
        for (; d < head_dim; d++)
            for (int j = first; j < first + LANES; j++) scores[j] += q[d] * keys[j * stride + d];
    }
}

/* out[head_dim] = out * keep + the sum of weights[j] * values[j] for j in [first, last): even and odd j apart. */
INLINE void add_values(float *out, float keep, const float *weights, const float *values, int64_t stride, int first,
                       int last, int64_t head_dim) {
    int64_t d = 0;
    for (; d + 4 * LANES <= head_dim; d += 4 * LANES) {
        vf even[4], odd[4];
        UNROLL for (int v = 0; v < 4; v++) {
            even[v] = load(out + d + v * LANES) * keep;
            odd[v] = splat(0.0f);
        }
        int j = first;
        for (; j + 2 <= last; j += 2) {
            const float *value = values + j * stride + d;
            vf weight = splat(weights[j]), next = splat(weights[j + 1]);
            UNROLL for (int v = 0; v < 4; v++) {
                even[v] = fma_vf(weight, load(value + v * LANES), even[v]);
                odd[v] = fma_vf(next, load(value + stride + v * LANES), odd[v]);
            }
        }
        if (j < last) {
            vf weight = splat(weights[j]);
            UNROLL for (int v = 0; v < 4; v++)
                even[v] = fma_vf(weight, load(values + j * stride + d + v * LANES), even[v]);
        }
        UNROLL for (int v = 0; v < 4; v++) store(out + d + v * LANES, even[v] + odd[v]);
    }
    for (; d + LANES <= head_dim; d += LANES) {
        vf sum = load(out + d) * keep;
        for (int j = first; j < last; j++) sum = fma_vf(splat(weights[j]), load(values + j * stride + d), sum);
        store(out + d, sum);
    }
    for (; d < head_dim; d++) {
        float sum = out[d] * keep;
        for (int j = first; j < last; j++) sum += weights[j] * values[j * stride + d];
        out[d] = sum;
    }
}

/* One head's softmax so far: the largest score, and the sum of e ** (score - largest). */
struct running {
    float largest;
    float sum;
};

/* Takes positions [first, last) of one KV block into `out`. keys and values point at the block's position 0. */
INLINE void attend_block(const struct poot_attention_job *job, const float *query, const float *keys,
                         const float *values, int first, int last, struct running *state, float *out) {
    int64_t stride = job->num_kv_heads * job->head_dim;
    _Alignas(64) float scores[KV_BLOCK];
    score_block(query, keys, stride, job->head_dim, scores);
    vf largest_each = splat(state->largest);
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        vf score = load(scores + v * LANES) * (float)job->scale;
        if (job->softcap > 0.0) score = tanh_vf(score / (float)job->softcap) * (float)job->softcap;
        store(scores + v * LANES, score);
    }
    /* Whatever lies in the block beyond the positions that the token sees has no weight. */
    for (int j = 0; j < first; j++) scores[j] = -INFINITY;
    for (int j = last; j < KV_BLOCK; j++) scores[j] = -INFINITY;
    for (int v = 0; v < BLOCK_VECTORS; v++) largest_each = max_vf(load(scores + v * LANES), largest_each);
    float largest = max_lanes(largest_each);
    /* With no finite score yet there is nothing to be relative to. */
    float base = largest == -INFINITY ? 0.0f : largest;
    float keep = largest == state->largest ? 1.0f : exp_vf(splat(state->largest - base))[0];
    vf sum = splat(0.0f);
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        vf weight = exp_vf(load(scores + v * LANES) - base);
        store(scores + v * LANES, weight);
        sum += weight;
    }
    state->sum = state->sum * keep + sum_lanes(sum);
    state->largest = largest;
    add_values(out, keep, scores, values, stride, first, last, job->head_dim);
}

/* Heads [first_head, first_head + heads) of `token`, which all share one KV head; heads <= MAX_TASK_HEADS. */
#define MAX_TASK_HEADS 16

static void attend(const struct poot_attention_job *job, int64_t token, int64_t first_head, int heads) {
    int64_t row = 0;
    while (job->query_starts[row + 1] <= token) row++;
    int64_t query_length = job->query_starts[row + 1] - job->query_starts[row];
    int64_t position = job->context_lengths[row] - query_length + (token - job->query_starts[row]);
    int64_t begin = job->window > 0 && position >= job->window ? position - job->window + 1 : 0;
    int64_t kv_head = first_head / (job->num_heads / job->num_kv_heads);
    const int32_t *table = job->block_tables + row * job->max_blocks;
    const float *query = job->query + token * job->query_stride + first_head * job->head_dim;
    float *out = job->out + (token * job->num_heads + first_head) * job->head_dim;

    struct running states[MAX_TASK_HEADS];
    for (int head = 0; head < heads; head++) states[head] = (struct running){-INFINITY, 0.0f};
    memset(out, 0, (size_t)(heads * job->head_dim) * sizeof(float));
    for (int64_t block = begin / KV_BLOCK; block <= position / KV_BLOCK; block++) {
        int first = block == begin / KV_BLOCK ? (int)(begin % KV_BLOCK) : 0;
        int last = block == position / KV_BLOCK ? (int)(position % KV_BLOCK) + 1 : KV_BLOCK;
        int64_t offset = ((int64_t)table[block] * KV_BLOCK * job->num_kv_heads + kv_head) * job->head_dim;
        for (int head = 0; head < heads; head++)
            attend_block(job, query + head * job->head_dim, job->key_pool + offset, job->value_pool + offset, first,
                         last, &states[head], out + head * job->head_dim);
    }
    for (int head = 0; head < heads; head++) {
        float *row_out = out + head * job->head_dim;
        for (int64_t d = 0; d < job->head_dim; d++) row_out[d] /= states[head].sum;
    }
}

static void attention(const struct poot_attention_job *job) {
    int64_t tokens = job->query_starts[job->num_rows];
    int64_t positions = 0;
    for (int64_t row = 0; row < job->num_rows; row++)
        positions += (job->query_starts[row + 1] - job->query_starts[row]) * (int64_t)job->context_lengths[row];
    int threads = threads_for(job->threads, 2 * positions * job->num_heads * job->head_dim);
    int64_t group = job->num_heads / job->num_kv_heads;
    /* The heads of one KV head share its loads; but with too few tasks for the threads each head is one of its own. */
    int64_t task_heads = tokens * job->num_kv_heads < 4 * threads && threads > 1 ? 1 : group;
    if (task_heads > MAX_TASK_HEADS) task_heads = MAX_TASK_HEADS;
    int64_t group_tasks = (group + task_heads - 1) / task_heads;
    int64_t tasks = tokens * job->num_kv_heads * group_tasks;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t task = 0; task < tasks; task++) {
        int64_t part = task % group_tasks, kv_head = task / group_tasks % job->num_kv_heads;
        int64_t token = task / group_tasks / job->num_kv_heads, first = part * task_heads;
        int heads = (int)(group - first < task_heads ? group - first : task_heads);
        attend(job, token, kv_head * group + first, heads);
    }
}

#endif
