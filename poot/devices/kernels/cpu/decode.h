/* The decoder of each format for this instruction set, and dequantization, which is a decoder run over rows. */
#ifndef POOT_DECODE_H
#define POOT_DECODE_H

#include "decode_portable.h"

#if defined(__AVX2__)
#include "decode_x86.h"
#define DECODER(format) x86_##format
#else
#define DECODER(format) decode_##format
#endif

static decode_function *const decoders[POOT_NUM_FORMATS] = {
    [POOT_F32] = decode_f32,
    [POOT_F16] = DECODER(f16),
    [POOT_BF16] = DECODER(bf16),
    [POOT_Q4_0] = DECODER(q4_0),
    [POOT_Q4_1] = DECODER(q4_1),
    [POOT_Q5_0] = DECODER(q5_0),
    [POOT_Q5_1] = DECODER(q5_1),
    [POOT_Q8_0] = DECODER(q8_0),
    [POOT_Q2_K] = DECODER(q2_k),
    [POOT_Q3_K] = DECODER(q3_k),
    [POOT_Q4_K] = DECODER(q4_k),
    [POOT_Q5_K] = DECODER(q5_k),
    [POOT_Q6_K] = DECODER(q6_k),
    [POOT_IQ4_NL] = DECODER(iq4_nl),
    [POOT_IQ4_XS] = DECODER(iq4_xs),
    [POOT_MXFP4] = DECODER(mxfp4),
};

static void dequantize(const struct poot_dequantize_job *job) {
    const struct poot_block *block = &poot_blocks[job->format];
    decode_function *decode = decoders[job->format];
    int64_t row_blocks = job->row_weights / block->weights;
    int threads = threads_for(job->threads, job->rows * job->row_weights);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < job->rows; row++)
        decode(job->source + row * row_blocks * block->bytes, row_blocks, job->out + row * job->row_weights);
}

#endif
