/* What the native library offers: one table of kernels for each instruction set it was compiled for.

   Conventions of every kernel: activations are f32, sizes and strides count elements unless they say bytes, nothing is
   allocated, and each output is computed by one thread in one order, whatever the number of threads or of rows. */
#ifndef POOT_NATIVE_H
#define POOT_NATIVE_H

#include <stdint.h>

/* Raised with every change of a signature or of a meaning; ABI_VERSION in native.py says the same. */
#define POOT_ABI_VERSION 1

/* Storage formats; native.py asks for the numbers by label. */
enum poot_format {
    POOT_F32,
    POOT_F16,
    POOT_BF16,
    POOT_Q4_0,
    POOT_Q4_1,
    POOT_Q5_0,
    POOT_Q5_1,
    POOT_Q8_0,
    POOT_Q2_K,
    POOT_Q3_K,
    POOT_Q4_K,
    POOT_Q5_K,
    POOT_Q6_K,
    POOT_IQ4_NL,
    POOT_IQ4_XS,
    POOT_MXFP4,
    POOT_NUM_FORMATS
};

/* Weights and bytes of one block of each format, as poot/devices/formats.py has them. */
struct poot_block {
    const char *label;
    int weights;
    int bytes;
};
extern const struct poot_block poot_blocks[POOT_NUM_FORMATS];

/* The arguments of each kernel as one record of eight-byte fields, so that native.py packs them in one go: a call
   through ctypes costs several times less with one argument than with ten. Switches are integers, 0 being off. */

/* out[rows, row_weights] = the weights at source. */
struct poot_dequantize_job {
    int64_t format;
    const uint8_t *source;
    int64_t rows;
    int64_t row_weights;
    float *out;
    int64_t threads;
};

/* y[rows, out_features] = x[rows, in_features] times the transpose of weight[out_features, in_features], plus bias. */
struct poot_linear_job {
    int64_t format;
    const uint8_t *weight;
    int64_t out_features;
    int64_t in_features;
    const float *x;
    int64_t x_stride;
    int64_t rows;
    float *y;
    int64_t y_stride;
    const float *bias; /* or NULL */
    int64_t threads;
};

/* Causal attention over a paged KV pool; native.py describes the arrays. window and softcap are off at 0. */
struct poot_attention_job {
    const float *query;
    const float *key_pool;
    const float *value_pool;
    const int32_t *block_tables;
    const int32_t *query_starts;
    const int32_t *context_lengths;
    float *out;
    int64_t query_stride;
    int64_t num_rows;
    int64_t max_blocks;
    int64_t num_heads;
    int64_t num_kv_heads;
    int64_t head_dim;
    double scale;
    int64_t window;
    double softcap;
    int64_t threads;
};

/* out[rows, dim] = x / sqrt(mean of x ** 2 over dim + eps) * weight[dim]; out may be x. */
struct poot_rms_norm_job {
    const float *x;
    const float *weight; /* or NULL */
    int64_t rows;
    int64_t dim;
    double eps;
    float *out;
    int64_t threads;
};

/* Rotates the first rotary_dim values of each head of x[num_tokens, num_heads, head_dim] in place. */
struct poot_rope_job {
    float *x;
    int64_t row_stride;
    int64_t num_tokens;
    int64_t num_heads;
    int64_t head_dim;
    int64_t rotary_dim;
    int64_t interleaved;
    const float *cos;
    const float *sin;
    const int64_t *positions;
};

/* out[rows, n] = activation(gate) * up, with the gate in the first half of each row of gate_up[rows, 2 n]. */
struct poot_gated_job {
    const float *gate_up;
    int64_t rows;
    int64_t n;
    float *out;
    int64_t threads;
};

/* x[n] += scale * y[n]. */
struct poot_add_job {
    float *x;
    const float *y;
    double scale;
    int64_t n;
};

struct poot_kernels {
    const char *isa;
    void (*dequantize)(const struct poot_dequantize_job *);
    void (*linear)(const struct poot_linear_job *);
    void (*attention)(const struct poot_attention_job *);
    void (*rms_norm)(const struct poot_rms_norm_job *);
    void (*rope)(const struct poot_rope_job *);
    void (*gated_silu)(const struct poot_gated_job *);
    void (*gated_gelu_tanh)(const struct poot_gated_job *);
    void (*add)(const struct poot_add_job *);
};

/* Defined by kernels.c, once for each instruction set. */
extern const struct poot_kernels poot_kernels_generic;
#ifdef POOT_HAS_X86_VARIANTS
extern const struct poot_kernels poot_kernels_avx2;
extern const struct poot_kernels poot_kernels_avx512;
#endif

#endif
