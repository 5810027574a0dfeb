/* From the bytes of blocks to f32 weights, one function for each format.

   The layouts are those that dequantize.py documents, and so are the bits: one multiplication, and one addition or
   subtraction, in the same order. Where a product is exact in f32 (an f16 scale times small whole numbers), a fused
   multiply-add gives the same bits. The loops are written for the compiler's vectorizer; formats that decide the speed
   of common files have intrinsics besides. */
#ifndef POOT_DECODE_H
#define POOT_DECODE_H

#include "poot_native.h"
#include "vector.h"

typedef void decode_function(const uint8_t *restrict source, int64_t num_blocks, float *restrict out);

INLINE uint16_t read_u16(const uint8_t *p) {
    uint16_t value;
    memcpy(&value, p, 2);
    return value;
}

INLINE uint32_t read_u32(const uint8_t *p) {
    uint32_t value;
    memcpy(&value, p, 4);
    return value;
}

INLINE float bits_to_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE float half_bits_to_float(uint16_t half) {
#if defined(__F16C__)
    return _cvtsh_ss(half);
#elif defined(__aarch64__)
    __fp16 value;
    memcpy(&value, &half, 2);
    return (float)value;
#else
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t rest = half & 0x7fff;
    if (rest >= 0x7c00) return bits_to_float(sign | 0x7f800000 | (rest & 0x3ff) << 13); /* infinity or NaN */
    if (rest >= 0x0400) return bits_to_float(sign | ((rest << 13) + (112u << 23)));
    float subnormal = (float)rest * 0x1p-24f;
    return sign ? -subnormal : subnormal;
#endif
}

INLINE float read_half(const uint8_t *p) { return half_bits_to_float(read_u16(p)); }

static const float iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const float mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* 2 ** (exponent - 128); the two smallest are subnormal. */
INLINE float e8m0_half(uint8_t exponent) {
    return bits_to_float(exponent < 2 ? (uint32_t)0x00200000 << exponent : (uint32_t)(exponent - 1) << 23);
}

/* ---- Sixteen bytes of 4-bit codes: low nibbles are weights 0 to 15, high nibbles 16 to 31. */

#if defined(__AVX512F__)
/* A table of the sixteen possible weights; a permutation of it reads only the low four bits of each index. */
INLINE void write_nibbles(const uint8_t *codes, __m512 table, float *out) {
    __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)codes));
    store(out, _mm512_permutexvar_ps(bytes, table));
    store(out + 16, _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table));
}

INLINE __m512 count_from(float first) {
    return _mm512_add_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_ps(first));
}
#endif

static void decode_q4_0(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 18, out += 32) {
        float d = read_half(source);
#if defined(__AVX512F__)
        write_nibbles(source + 2, _mm512_mul_ps(count_from(-8), _mm512_set1_ps(d)), out);
#else
        for (int i = 0; i < 16; i++) out[i] = (float)((source[2 + i] & 15) - 8) * d;
        for (int i = 0; i < 16; i++) out[16 + i] = (float)((source[2 + i] >> 4) - 8) * d;
#endif
    }
}

static void decode_q4_1(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 20, out += 32) {
        float d = read_half(source), m = read_half(source + 2);
#if defined(__AVX512F__)
        write_nibbles(source + 4, _mm512_fmadd_ps(count_from(0), _mm512_set1_ps(d), _mm512_set1_ps(m)), out);
#else
        for (int i = 0; i < 16; i++) out[i] = (float)(source[4 + i] & 15) * d + m;
        for (int i = 0; i < 16; i++) out[16 + i] = (float)(source[4 + i] >> 4) * d + m;
#endif
    }
}

static void decode_iq4_nl(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 18, out += 32) {
        float d = read_half(source);
#if defined(__AVX512F__)
        write_nibbles(source + 2, _mm512_mul_ps(_mm512_loadu_ps(iq4_values), _mm512_set1_ps(d)), out);
#else
        for (int i = 0; i < 16; i++) out[i] = iq4_values[source[2 + i] & 15] * d;
        for (int i = 0; i < 16; i++) out[16 + i] = iq4_values[source[2 + i] >> 4] * d;
#endif
    }
}

static void decode_mxfp4(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 17, out += 32) {
        float d = e8m0_half(source[0]);
#if defined(__AVX512F__)
        write_nibbles(source + 1, _mm512_mul_ps(_mm512_loadu_ps(mxfp4_values), _mm512_set1_ps(d)), out);
#else
        for (int i = 0; i < 16; i++) out[i] = mxfp4_values[source[1 + i] & 15] * d;
        for (int i = 0; i < 16; i++) out[16 + i] = mxfp4_values[source[1 + i] >> 4] * d;
#endif
    }
}

/* ---- Five bits: nibbles as above, the fifth bit of weight i in bit i of a 32-bit word. */

static void decode_q5_0(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 22, out += 32) {
        float d = read_half(source);
        uint32_t high = read_u32(source + 2);
        for (int i = 0; i < 16; i++) out[i] = (float)((int)((source[6 + i] & 15) | (high >> i & 1) << 4) - 16) * d;
        for (int i = 0; i < 16; i++)
            out[16 + i] = (float)((int)((source[6 + i] >> 4) | (high >> (16 + i) & 1) << 4) - 16) * d;
    }
}

static void decode_q5_1(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 24, out += 32) {
        float d = read_half(source), m = read_half(source + 2);
        uint32_t high = read_u32(source + 4);
        for (int i = 0; i < 16; i++) out[i] = (float)(int)((source[8 + i] & 15) | (high >> i & 1) << 4) * d + m;
        for (int i = 0; i < 16; i++)
            out[16 + i] = (float)(int)((source[8 + i] >> 4) | (high >> (16 + i) & 1) << 4) * d + m;
    }
}

static void decode_q8_0(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 34, out += 32) {
        float d = read_half(source);
        const int8_t *codes = (const int8_t *)source + 2;
        for (int i = 0; i < 32; i++) out[i] = (float)codes[i] * d;
    }
}

/* ---- Blocks of 256 with scales of sub-blocks. */

static void decode_q2_k(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 84) {
        float d = read_half(source + 80), dmin = read_half(source + 82);
        for (int sub = 0; sub < 16; sub++, out += 16) {
            const uint8_t *codes = source + 16 + sub / 8 * 32 + sub % 2 * 16;
            int shift = sub % 8 / 2 * 2;
            float scale = d * (float)(source[sub] & 15), minimum = dmin * (float)(source[sub] >> 4);
            for (int i = 0; i < 16; i++) out[i] = (float)(codes[i] >> shift & 3) * scale - minimum;
        }
    }
}

static void decode_q3_k(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 110) {
        float d = read_half(source + 108);
        const uint8_t *scales = source + 96;
        for (int sub = 0; sub < 16; sub++, out += 16) {
            const uint8_t *codes = source + 32 + sub / 8 * 32 + sub % 2 * 16, *high = source + sub % 2 * 16;
            int shift = sub % 8 / 2 * 2, bit = sub / 2;
            int low = scales[sub % 8] >> (sub / 8 * 4) & 15, top = scales[8 + sub % 4] >> (sub / 4 * 2) & 3;
            float scale = d * (float)((low | top << 4) - 32);
            for (int i = 0; i < 16; i++)
                out[i] = (float)((codes[i] >> shift & 3) + (high[i] >> bit & 1) * 4 - 4) * scale;
        }
    }
}

/* The scales and minimums of a Q4_K or Q5_K block, times d and dmin: eight each. */
INLINE void read_k_scales(const uint8_t *source, float *scales, float *minimums) {
    float d = read_half(source), dmin = read_half(source + 2);
    uint32_t first = read_u32(source + 4), second = read_u32(source + 8), low = read_u32(source + 12);
    uint32_t words[4] = {
        first & 0x3f3f3f3f,
        (low & 0x0f0f0f0f) | (first >> 2 & 0x30303030),
        second & 0x3f3f3f3f,
        (low >> 4 & 0x0f0f0f0f) | (second >> 2 & 0x30303030),
    };
    uint8_t codes[16];
    memcpy(codes, words, 16);
    for (int i = 0; i < 8; i++) scales[i] = d * (float)codes[i];
    for (int i = 0; i < 8; i++) minimums[i] = dmin * (float)codes[8 + i];
}

static void decode_q4_k(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 144) {
        float scales[8], minimums[8];
        read_k_scales(source, scales, minimums);
        for (int pair = 0; pair < 4; pair++, out += 64) {
            const uint8_t *codes = source + 16 + pair * 32;
            float scale = scales[2 * pair], minimum = minimums[2 * pair];
            float next_scale = scales[2 * pair + 1], next_minimum = minimums[2 * pair + 1];
            for (int i = 0; i < 32; i++) out[i] = (float)(codes[i] & 15) * scale - minimum;
            for (int i = 0; i < 32; i++) out[32 + i] = (float)(codes[i] >> 4) * next_scale - next_minimum;
        }
    }
}

static void decode_q5_k(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 176) {
        float scales[8], minimums[8];
        read_k_scales(source, scales, minimums);
        const uint8_t *high = source + 16;
        for (int sub = 0; sub < 8; sub++, out += 32) {
            const uint8_t *codes = source + 48 + sub / 2 * 32;
            int shift = sub % 2 * 4;
            for (int i = 0; i < 32; i++)
                out[i] = (float)((codes[i] >> shift & 15) | (high[i] >> sub & 1) << 4) * scales[sub] - minimums[sub];
        }
    }
}

static void decode_q6_k(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 210) {
        float d = read_half(source + 208);
        const int8_t *scales = (const int8_t *)source + 192;
        for (int sub = 0; sub < 16; sub++, out += 16) {
            const uint8_t *low = source + sub / 8 * 64 + sub % 4 * 16, *high = source + 128 + sub / 8 * 32 + sub % 2 * 16;
            int low_shift = sub % 8 / 4 * 4, high_shift = sub % 8 / 2 * 2;
            float scale = d * (float)scales[sub];
            for (int i = 0; i < 16; i++)
                out[i] = (float)(((low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4) - 32) * scale;
        }
    }
}

static void decode_iq4_xs(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 136) {
        float d = read_half(source);
        int high = read_u16(source + 2);
        for (int sub = 0; sub < 8; sub++, out += 32) {
            const uint8_t *codes = source + 8 + sub * 16;
            int low = source[4 + sub / 2] >> (sub % 2 * 4) & 15;
            float scale = d * (float)((low | (high >> (2 * sub) & 3) << 4) - 32);
#if defined(__AVX512F__)
            write_nibbles(codes, _mm512_mul_ps(_mm512_loadu_ps(iq4_values), _mm512_set1_ps(scale)), out);
#else
            for (int i = 0; i < 16; i++) out[i] = iq4_values[codes[i] & 15] * scale;
            for (int i = 0; i < 16; i++) out[16 + i] = iq4_values[codes[i] >> 4] * scale;
#endif
        }
    }
}

/* ---- Dense types; a block is one weight. */

static void decode_f32(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    memcpy(out, source, (size_t)num_blocks * 4);
}

static void decode_f16(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= num_blocks; i += 16)
        store(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(source + 2 * i))));
#elif defined(__F16C__)
    for (; i + 8 <= num_blocks; i += 8)
        store(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(source + 2 * i))));
#endif
    for (; i < num_blocks; i++) out[i] = read_half(source + 2 * i);
}

static void decode_bf16(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t i = 0; i < num_blocks; i++) {
        uint32_t bits = (uint32_t)read_u16(source + 2 * i) << 16;
        memcpy(out + i, &bits, 4);
    }
}

static decode_function *const decoders[POOT_NUM_FORMATS] = {
    [POOT_F32] = decode_f32,     [POOT_F16] = decode_f16,       [POOT_BF16] = decode_bf16,
    [POOT_Q4_0] = decode_q4_0,   [POOT_Q4_1] = decode_q4_1,     [POOT_Q5_0] = decode_q5_0,
    [POOT_Q5_1] = decode_q5_1,   [POOT_Q8_0] = decode_q8_0,     [POOT_Q2_K] = decode_q2_k,
    [POOT_Q3_K] = decode_q3_k,   [POOT_Q4_K] = decode_q4_k,     [POOT_Q5_K] = decode_q5_k,
    [POOT_Q6_K] = decode_q6_k,   [POOT_IQ4_NL] = decode_iq4_nl, [POOT_IQ4_XS] = decode_iq4_xs,
    [POOT_MXFP4] = decode_mxfp4,
};

static void dequantize(enum poot_format format, const uint8_t *source, int64_t rows, int64_t row_weights, float *out,
                       int threads) {
    const struct poot_block *block = &poot_blocks[format];
    int64_t row_blocks = row_weights / block->weights;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row++)
        decoders[format](source + row * row_blocks * block->bytes, row_blocks, out + row * row_weights);
}

#endif
