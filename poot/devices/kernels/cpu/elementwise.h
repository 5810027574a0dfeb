/* The small operations between the products: norm, rope, gates, addition. */
#ifndef POOT_ELEMENTWISE_H
#define POOT_ELEMENTWISE_H

#include <math.h>

#include "poot_native.h"
#include "vector.h"

static void rms_norm(const struct poot_rms_norm_job *job) {
    int64_t dim = job->dim;
    const float *weight = job->weight;
#pragma omp parallel for schedule(static) num_threads((int)job->threads) if (job->threads > 1)
    for (int64_t row = 0; row < job->rows; row++) {
        const float *in = job->x + row * dim;
        float *out = job->out + row * dim;
        vf even = splat(0.0f), odd = splat(0.0f);
        int64_t i = 0;
        for (; i + 2 * LANES <= dim; i += 2 * LANES) {
            vf first = load(in + i), second = load(in + i + LANES);
            even = fma_vf(first, first, even);
            odd = fma_vf(second, second, odd);
        }
        float sum = sum_lanes(even + odd);
        for (; i < dim; i++) sum += in[i] * in[i];
        float factor = 1.0f / sqrtf(sum / (float)dim + (float)job->eps);
        for (i = 0; i + LANES <= dim; i += LANES) {
            vf scaled = load(in + i) * factor;
            store(out + i, weight == NULL ? scaled : scaled * load(weight + i));
        }
        for (; i < dim; i++) out[i] = weight == NULL ? in[i] * factor : in[i] * factor * weight[i];
    }
}

/* Rotates one head by the angles whose cosines and sines are given, pairs being (i, half + i). */
INLINE void rotate_halves(float *restrict head, int64_t half, const float *restrict cos, const float *restrict sin) {
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        vf a = load(head + i), b = load(head + half + i), c = load(cos + i), s = load(sin + i);
        store(head + i, a * c - b * s);
        store(head + half + i, b * c + a * s);
    }
    for (; i < half; i++) {
        float a = head[i], b = head[half + i];
        head[i] = a * cos[i] - b * sin[i];
        head[half + i] = b * cos[i] + a * sin[i];
    }
}

/* The same for pairs (2i, 2i + 1). */
INLINE void rotate_pairs(float *restrict head, int64_t half, const float *restrict cos, const float *restrict sin) {
    for (int64_t i = 0; i < half; i++) {
        float a = head[2 * i], b = head[2 * i + 1];
        head[2 * i] = a * cos[i] - b * sin[i];
        head[2 * i + 1] = b * cos[i] + a * sin[i];
    }
}

static void rope(const struct poot_rope_job *job) {
    int64_t half = job->rotary_dim / 2;
    for (int64_t token = 0; token < job->num_tokens; token++) {
        const float *cos = job->cos + job->positions[token] * half, *sin = job->sin + job->positions[token] * half;
        for (int64_t head = 0; head < job->num_heads; head++) {
            float *x = job->x + token * job->row_stride + head * job->head_dim;
            if (job->interleaved)
                rotate_pairs(x, half, cos, sin);
            else
                rotate_halves(x, half, cos, sin);
        }
    }
}

/* x / (1 + e ** -x). At large -x the quotient is 0, as the limit is. */
INLINE vf silu_vf(vf x) { return x / (exp_vf(-x) + 1.0f); }

/* 0.5 x (1 + tanh u) with u = sqrt(2 / pi) (x + 0.044715 x ** 3) (Hendrycks and Gimpel 2016), which is
   x / (1 + e ** -2u): the same function without the cancellation at negative x. */
INLINE vf gelu_tanh_vf(vf x) {
    vf cubic = fma_vf(x * x * x, splat(0.044715f), x);
    return x / (exp_vf(cubic * -1.5957691216057308f) + 1.0f);
}

#define DEFINE_GATED(name, activation)                                                                                 \
    static void name(const struct poot_gated_job *job) {                                                               \
        _Pragma("omp parallel for schedule(static) num_threads((int)job->threads) if (job->threads > 1)")              \
        for (int64_t row = 0; row < job->rows; row++) {                                                                \
            const float *gate = job->gate_up + row * 2 * job->n, *up = gate + job->n;                                  \
            float *out = job->out + row * job->n;                                                                      \
            int64_t i = 0;                                                                                             \
            for (; i + LANES <= job->n; i += LANES) store(out + i, activation(load(gate + i)) * load(up + i));         \
            for (; i < job->n; i++) out[i] = activation(splat(gate[i]))[0] * up[i];                                    \
        }                                                                                                              \
    }
DEFINE_GATED(gated_silu, silu_vf)
DEFINE_GATED(gated_gelu_tanh, gelu_tanh_vf)

static void add(const struct poot_add_job *job) {
    float scale = (float)job->scale;
    for (int64_t i = 0; i < job->n; i++) job->x[i] += scale * job->y[i];
}

#endif
