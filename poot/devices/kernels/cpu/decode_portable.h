/* From the bytes of blocks to f32 weights, one function for each format, in plain C for the compiler's vectorizer.

   The layouts are those that dequantize.py documents, and so are the bits: one multiplication, and one addition or
   subtraction, in the same order. */
#ifndef POOT_DECODE_PORTABLE_H
#define POOT_DECODE_PORTABLE_H

#include "poot_native.h"
#include "vector.h"

/* A build may replace some of these. */
#define PORTABLE static __attribute__((unused))

/* `out` receives num_blocks times the block's weights. */
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

PORTABLE void decode_q4_0(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 18, out += 32) {
        float d = read_half(source);
        for (int i = 0; i < 16; i++) out[i] = (float)((source[2 + i] & 15) - 8) * d;
        for (int i = 0; i < 16; i++) out[16 + i] = (float)((source[2 + i] >> 4) - 8) * d;
    }
}

PORTABLE void decode_q4_1(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 20, out += 32) {
        float d = read_half(source), m = read_half(source + 2);
        for (int i = 0; i < 16; i++) out[i] = (float)(source[4 + i] & 15) * d + m;
        for (int i = 0; i < 16; i++) out[16 + i] = (float)(source[4 + i] >> 4) * d + m;
    }
}

PORTABLE void decode_iq4_nl(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 18, out += 32) {
        float d = read_half(source);
        for (int i = 0; i < 16; i++) out[i] = iq4_values[source[2 + i] & 15] * d;
        for (int i = 0; i < 16; i++) out[16 + i] = iq4_values[source[2 + i] >> 4] * d;
    }
}

PORTABLE void decode_mxfp4(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 17, out += 32) {
        float d = e8m0_half(source[0]);
        for (int i = 0; i < 16; i++) out[i] = mxfp4_values[source[1 + i] & 15] * d;
        for (int i = 0; i < 16; i++) out[16 + i] = mxfp4_values[source[1 + i] >> 4] * d;
    }
}

/* ---- Five bits: nibbles as above, the fifth bit of weight i in bit i of a 32-bit word. */

PORTABLE void decode_q5_0(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 22, out += 32) {
        float d = read_half(source);
        uint32_t high = read_u32(source + 2);
        for (int i = 0; i < 16; i++) out[i] = (float)((int)((source[6 + i] & 15) | (high >> i & 1) << 4) - 16) * d;
        for (int i = 0; i < 16; i++)
            out[16 + i] = (float)((int)((source[6 + i] >> 4) | (high >> (16 + i) & 1) << 4) - 16) * d;
    }
}

PORTABLE void decode_q5_1(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 24, out += 32) {
        float d = read_half(source), m = read_half(source + 2);
        uint32_t high = read_u32(source + 4);
        for (int i = 0; i < 16; i++) out[i] = (float)(int)((source[8 + i] & 15) | (high >> i & 1) << 4) * d + m;
        for (int i = 0; i < 16; i++)
            out[16 + i] = (float)(int)((source[8 + i] >> 4) | (high >> (16 + i) & 1) << 4) * d + m;
    }
}

PORTABLE void decode_q8_0(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 34, out += 32) {
        float d = read_half(source);
        const int8_t *codes = (const int8_t *)source + 2;
        for (int i = 0; i < 32; i++) out[i] = (float)codes[i] * d;
    }
}

/* ---- Blocks of 256 with scales of sub-blocks. */

PORTABLE void decode_q2_k(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
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

/* The sixteen scales of a Q3_K block, times d. */
INLINE void read_q3_k_scales(const uint8_t *source, float *scales) {
    float d = read_half(source + 108);
    const uint8_t *packed = source + 96;
    for (int sub = 0; sub < 16; sub++) {
        int low = packed[sub % 8] >> (sub / 8 * 4) & 15, top = packed[8 + sub % 4] >> (sub / 4 * 2) & 3;
        scales[sub] = d * (float)((low | top << 4) - 32);
    }
}

PORTABLE void decode_q3_k(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 110) {
        float scales[16];
        read_q3_k_scales(source, scales);
        for (int sub = 0; sub < 16; sub++, out += 16) {
            const uint8_t *codes = source + 32 + sub / 8 * 32 + sub % 2 * 16, *high = source + sub % 2 * 16;
            int shift = sub % 8 / 2 * 2, bit = sub / 2;
            for (int i = 0; i < 16; i++)
                out[i] = (float)((codes[i] >> shift & 3) + (high[i] >> bit & 1) * 4 - 4) * scales[sub];
        }
    }
}

/* The eight 6-bit scales and then the eight minimums of a Q4_K or Q5_K block, one a byte. */
INLINE void unpack_k_scales(const uint8_t *source, uint32_t *words) {
    uint32_t first = read_u32(source + 4), second = read_u32(source + 8), low = read_u32(source + 12);
    words[0] = first & 0x3f3f3f3f;
    words[1] = (low & 0x0f0f0f0f) | (first >> 2 & 0x30303030);
    words[2] = second & 0x3f3f3f3f;
    words[3] = (low >> 4 & 0x0f0f0f0f) | (second >> 2 & 0x30303030);
}

/* The same times d and dmin. */
INLINE void read_k_scales(const uint8_t *source, float *scales, float *minimums) {
    float d = read_half(source), dmin = read_half(source + 2);
    uint32_t words[4];
    unpack_k_scales(source, words);
    uint8_t codes[16];
    memcpy(codes, words, 16);
    for (int i = 0; i < 8; i++) scales[i] = d * (float)codes[i];
    for (int i = 0; i < 8; i++) minimums[i] = dmin * (float)codes[8 + i];
}

PORTABLE void decode_q4_k(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
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

PORTABLE void decode_q5_k(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
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

PORTABLE void decode_q6_k(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
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

/* The eight scales of an IQ4_XS block, times d. */
INLINE void read_iq4_xs_scales(const uint8_t *source, float *scales) {
    float d = read_half(source);
    int high = read_u16(source + 2);
    for (int sub = 0; sub < 8; sub++) {
        int low = source[4 + sub / 2] >> (sub % 2 * 4) & 15;
        scales[sub] = d * (float)((low | (high >> (2 * sub) & 3) << 4) - 32);
    }
}

PORTABLE void decode_iq4_xs(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 136) {
        float scales[8];
        read_iq4_xs_scales(source, scales);
        for (int sub = 0; sub < 8; sub++, out += 32) {
            const uint8_t *codes = source + 8 + sub * 16;
            for (int i = 0; i < 16; i++) out[i] = iq4_values[codes[i] & 15] * scales[sub];
            for (int i = 0; i < 16; i++) out[16 + i] = iq4_values[codes[i] >> 4] * scales[sub];
        }
    }
}

/* ---- Dense types; a block is one weight. */

PORTABLE void decode_f32(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    memcpy(out, source, (size_t)num_blocks * 4);
}

PORTABLE void decode_f16(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t i = 0; i < num_blocks; i++) out[i] = read_half(source + 2 * i);
}

PORTABLE void decode_bf16(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t i = 0; i < num_blocks; i++) {
        uint32_t bits = (uint32_t)read_u16(source + 2 * i) << 16;
        memcpy(out + i, &bits, 4);
    }
}

#endif
