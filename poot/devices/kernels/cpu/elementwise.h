/* The small operations between the products: norm, rope, gates, addition. */
#ifndef POOT_ELEMENTWISE_H
#define POOT_ELEMENTWISE_H

#include <math.h>

#include "vector.h"

static void rms_norm(const float *x, const float *weight, int64_t rows, int64_t dim, float eps, float *out,
                     int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row++) {
        const float *in = x + row * dim;
        float *to = out + row * dim;
        vf even = splat(0.0f), odd = splat(0.0f);
        int64_t i = 0;
        for (; i + 2 * LANES <= dim; i += 2 * LANES) {
            vf first = load(in + i), second = load(in + i + LANES);
            even = fma_vf(first, first, even);
            odd = fma_vf(second, second, odd);
        }
        float sum = sum_lanes(even + odd);
        for (; i < dim; i++) sum += in[i] * in[i];
        float factor = 1.0f / sqrtf(sum / (float)dim + eps);
        if (weight == NULL)
            for (i = 0; i < dim; i++) to[i] = in[i] * factor;
        else
            for (i = 0; i < dim; i++) to[i] = in[i] * factor * weight[i];
    }
}

static void rope(float *x, int64_t row_stride, int64_t num_tokens, int64_t num_heads, int64_t head_dim,
                 int64_t rotary_dim, int interleaved, const float *cos, const float *sin, const int64_t *positions) {
    int64_t half = rotary_dim / 2;
    for (int64_t token = 0; token < num_tokens; token++) {
        const float *c = cos + positions[token] * half, *s = sin + positions[token] * half;
        for (int64_t head = 0; head < num_heads; head++) {
            float *restrict pairs = x + token * row_stride + head * head_dim;
            if (interleaved) {
                for (int64_t i = 0; i < half; i++) {
                    float a = pairs[2 * i], b = pairs[2 * i + 1];
                    pairs[2 * i] = a * c[i] - b * s[i];
                    pairs[2 * i + 1] = b * c[i] + a * s[i];
                }
            } else {
                for (int64_t i = 0; i < half; i++) {
                    float a = pairs[i], b = pairs[half + i];
                    pairs[i] = a * c[i] - b * s[i];
                    pairs[half + i] = b * c[i] + a * s[i];
                }
            }
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

/* out[rows, n] = activation(gate) * up, with the gate in the first half of each row of gate_up[rows, 2 n]. */
#define DEFINE_GATED(name, activation)                                                                                 \
    static void name(const float *gate_up, int64_t rows, int64_t n, float *out, int threads) {                         \
        _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")                             \
        for (int64_t row = 0; row < rows; row++) {                                                                     \
            const float *gate = gate_up + row * 2 * n, *up = gate + n;                                                 \
            float *to = out + row * n;                                                                                 \
            int64_t i = 0;                                                                                             \
            for (; i + LANES <= n; i += LANES) store(to + i, activation(load(gate + i)) * load(up + i));               \
            for (; i < n; i++) to[i] = activation(splat(gate[i]))[0] * up[i];                                          \
        }                                                                                                              \
    }
DEFINE_GATED(gated_silu, silu_vf)
DEFINE_GATED(gated_gelu_tanh, gelu_tanh_vf)

static void add(float *x, const float *y, float scale, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] += scale * y[i];
}

#endif
