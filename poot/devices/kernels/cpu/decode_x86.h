/* The decoders of decode_portable.h again, for AVX2 and AVX-512: the same layouts, the same bits.

   Codes are put together as bytes, sixteen or thirty-two at a time, then widened and scaled by `put` and `put_offset`.
   With AVX-512 a 4-bit code is looked up instead, in a register that holds the sixteen weights it can stand for.
   Scales of a run of blocks are converted from f16 at once, since one at a time costs as much as the weights.
   Where a product of scale and code is exact in f32 (up to 11 + 6 + 5 bits), the fused multiply-add rounds as a
   multiplication and an addition do. */
#ifndef POOT_DECODE_X86_H
#define POOT_DECODE_X86_H

#include "decode_portable.h"

#define RUN 32 /* blocks whose scales are converted together */

/* Writes sixteen signed codes times `scale`. */
INLINE void put(float *out, __m128i codes, float scale) {
#if LANES == 16
    store(out, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)) * scale);
#else
    store(out, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)) * scale);
    store(out + 8, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8))) * scale);
#endif
}

/* Writes sixteen codes below 128 times `scale`, plus `offset`; the products must be exact. */
INLINE void put_offset(float *out, __m128i codes, float scale, float offset) {
#if LANES == 16
    store(out, fma_vf(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)), splat(scale), splat(offset)));
#else
    store(out, fma_vf(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), splat(scale), splat(offset)));
    codes = _mm_srli_si128(codes, 8);
    store(out + 8, fma_vf(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), splat(scale), splat(offset)));
#endif
}

INLINE void put32(float *out, __m256i codes, float scale, float next_scale) {
    put(out, _mm256_castsi256_si128(codes), scale);
    put(out + 16, _mm256_extracti128_si256(codes, 1), next_scale);
}

INLINE void put32_offset(float *out, __m256i codes, float scale, float offset) {
    put_offset(out, _mm256_castsi256_si128(codes), scale, offset);
    put_offset(out + 16, _mm256_extracti128_si256(codes, 1), scale, offset);
}

INLINE __m128i load16(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE __m256i load32(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* Bits `shift` and up of every byte, cut to `mask`. */
INLINE __m256i bits32(__m256i bytes, int shift, char mask) {
    return _mm256_and_si256(_mm256_srli_epi16(bytes, shift), _mm256_set1_epi8(mask));
}

/* `value` in every byte of `bytes` that has bit `bit`, else 0. */
INLINE __m256i bit_as(__m256i bytes, int bit, char value) {
    __m256i mask = _mm256_set1_epi8((char)(1 << bit));
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, mask), mask), _mm256_set1_epi8(value));
}

/* Leaves `array` in memory, from where a number is broadcast for free; compilers like to keep it in a register, from
   where each costs a shuffle. */
#define KEEP_IN_MEMORY(array) __asm__ volatile("" ::"r"(array) : "memory")

/* Reads `per_block` f16 numbers, 1 or 2, from the start of each of `count` blocks, at most RUN. */
INLINE void read_halves(const uint8_t *source, int64_t stride, int count, int per_block, float *out) {
    _Alignas(64) uint16_t halves[2 * RUN];
    for (int b = 0; b < count; b++) {
        memcpy(halves + b * per_block, source + b * stride, per_block == 1 ? 2 : 4);
        /* Keeps compilers from making this a gather and a scatter, which are many times slower than these moves. */
        __asm__ volatile("" ::: "memory");
    }
    for (int i = 0; i < count * per_block; i += LANES) {
#if LANES == 16
        store(out + i, _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(halves + i))));
#else
        store(out + i, _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(halves + i))));
#endif
    }
}

/* ---- 4-bit codes of 32 weights in 16 bytes: low nibbles first. Code q stands for values[q] * scale + offset. */

static const int8_t below_eight[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
static const int8_t from_zero[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const int8_t iq4_bytes[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t mxfp4_bytes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

#if LANES == 16
typedef __m512 nibble_table;
INLINE nibble_table read_table(const int8_t *values) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load16((const uint8_t *)values)));
}
/* A permutation reads only the low four bits of each index. */
INLINE void put_nibbles(float *out, const uint8_t *codes, nibble_table table, float scale) {
    __m512i bytes = _mm512_cvtepu8_epi32(load16(codes));
    __m512 weights = table * scale;
    store(out, _mm512_permutexvar_ps(bytes, weights));
    store(out + 16, _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), weights));
}
#else
typedef __m128i nibble_table;
INLINE nibble_table read_table(const int8_t *values) { return load16((const uint8_t *)values); }
INLINE __m128i low_nibbles(__m128i bytes) { return _mm_and_si128(bytes, _mm_set1_epi8(15)); }
INLINE __m128i high_nibbles(__m128i bytes) { return low_nibbles(_mm_srli_epi16(bytes, 4)); }
INLINE void put_nibbles(float *out, const uint8_t *codes, nibble_table table, float scale) {
    put(out, _mm_shuffle_epi8(table, low_nibbles(load16(codes))), scale);
    put(out + 16, _mm_shuffle_epi8(table, high_nibbles(load16(codes))), scale);
}
#endif

INLINE void decode_nibbles(const uint8_t *source, int64_t num_blocks, const int8_t *values, float *out) {
    const nibble_table table = read_table(values);
    float scales[RUN];
    for (int64_t start = 0; start < num_blocks; start += RUN) {
        int count = (int)(num_blocks - start < RUN ? num_blocks - start : RUN);
        read_halves(source, 18, count, 1, scales);
        for (int b = 0; b < count; b++, source += 18, out += 32) put_nibbles(out, source + 2, table, scales[b]);
    }
}

static void x86_q4_0(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    decode_nibbles(source, num_blocks, below_eight, out);
}

static void x86_iq4_nl(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    decode_nibbles(source, num_blocks, iq4_bytes, out);
}

static void x86_mxfp4(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    const nibble_table table = read_table(mxfp4_bytes);
    for (int64_t b = 0; b < num_blocks; b++, source += 17, out += 32)
        put_nibbles(out, source + 1, table, e8m0_half(source[0]));
}

static void x86_iq4_xs(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    const nibble_table table = read_table(iq4_bytes);
    for (int64_t b = 0; b < num_blocks; b++, source += 136) {
        float scales[8];
        read_iq4_xs_scales(source, scales);
        KEEP_IN_MEMORY(scales);
        for (int sub = 0; sub < 8; sub++, out += 32) put_nibbles(out, source + 8 + sub * 16, table, scales[sub]);
    }
}

/* Low and high nibbles of 16 bytes, each with its own scale and offset. */
INLINE void put_nibbles_offset(float *low_out, float *high_out, const uint8_t *codes, float low_scale, float low_offset,
                               float high_scale, float high_offset) {
#if LANES == 16
    const nibble_table table = read_table(from_zero);
    __m512i bytes = _mm512_cvtepu8_epi32(load16(codes));
    store(low_out, _mm512_permutexvar_ps(bytes, fma_vf(table, splat(low_scale), splat(low_offset))));
    bytes = _mm512_srli_epi32(bytes, 4);
    store(high_out, _mm512_permutexvar_ps(bytes, fma_vf(table, splat(high_scale), splat(high_offset))));
#else
    put_offset(low_out, low_nibbles(load16(codes)), low_scale, low_offset);
    put_offset(high_out, high_nibbles(load16(codes)), high_scale, high_offset);
#endif
}

static void x86_q4_1(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    float scales[2 * RUN];
    for (int64_t start = 0; start < num_blocks; start += RUN) {
        int count = (int)(num_blocks - start < RUN ? num_blocks - start : RUN);
        read_halves(source, 20, count, 2, scales);
        for (int b = 0; b < count; b++, source += 20, out += 32) {
            float d = scales[2 * b], m = scales[2 * b + 1];
            put_nibbles_offset(out, out + 16, source + 4, d, m, d, m);
        }
    }
}

/* The eight scales of a Q4_K or Q5_K block times d, and its eight minimums times -dmin; each array has room for 16. */
INLINE void read_k_offsets(const uint8_t *source, float *scales, float *offsets) {
    uint32_t words[4];
    unpack_k_scales(source, words);
    __m128i codes = _mm_setr_epi32((int)words[0], (int)words[1], (int)words[2], (int)words[3]);
    put(scales, codes, read_half(source));
    put(offsets, _mm_srli_si128(codes, 8), -read_half(source + 2));
    KEEP_IN_MEMORY(scales);
    KEEP_IN_MEMORY(offsets);
}

static void x86_q4_k(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 144) {
        float s[16], m[16];
        read_k_offsets(source, s, m);
        for (int sub = 0; sub < 8; sub += 2, out += 64)
            for (int half = 0; half < 32; half += 16)
                put_nibbles_offset(out + half, out + 32 + half, source + 16 + sub * 16 + half, s[sub], m[sub],
                                   s[sub + 1], m[sub + 1]);
    }
}

/* ---- More bits. */

/* The 32 five-bit codes of Q5_0 and Q5_1. */
INLINE __m256i five_bits(const uint8_t *high, const uint8_t *low) {
    __m128i bytes = load16(low);
    __m256i nibbles = _mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes);
    nibbles = _mm256_and_si256(nibbles, _mm256_set1_epi8(15));
#if LANES == 16
    return _mm256_mask_add_epi8(nibbles, read_u32(high), nibbles, _mm256_set1_epi8(16));
#else
    /* Byte i of the word in each of the eight bytes that it belongs to, then one bit of it in each. */
    __m256i word = _mm256_shuffle_epi8(
        _mm256_set1_epi32((int)read_u32(high)),
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    __m256i mask = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(word, mask), mask);
    return _mm256_or_si256(nibbles, _mm256_and_si256(is_set, _mm256_set1_epi8(16)));
#endif
}

static void x86_q5_0(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    float scales[RUN];
    for (int64_t start = 0; start < num_blocks; start += RUN) {
        int count = (int)(num_blocks - start < RUN ? num_blocks - start : RUN);
        read_halves(source, 22, count, 1, scales);
        for (int b = 0; b < count; b++, source += 22, out += 32) {
            __m256i codes = _mm256_sub_epi8(five_bits(source + 2, source + 6), _mm256_set1_epi8(16));
            put32(out, codes, scales[b], scales[b]);
        }
    }
}

static void x86_q5_1(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    float scales[2 * RUN];
    for (int64_t start = 0; start < num_blocks; start += RUN) {
        int count = (int)(num_blocks - start < RUN ? num_blocks - start : RUN);
        read_halves(source, 24, count, 2, scales);
        for (int b = 0; b < count; b++, source += 24, out += 32)
            put32_offset(out, five_bits(source + 4, source + 8), scales[2 * b], scales[2 * b + 1]);
    }
}

static void x86_q8_0(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    float scales[RUN];
    for (int64_t start = 0; start < num_blocks; start += RUN) {
        int count = (int)(num_blocks - start < RUN ? num_blocks - start : RUN);
        read_halves(source, 34, count, 1, scales);
        for (int b = 0; b < count; b++, source += 34, out += 32) {
            put(out, load16(source + 2), scales[b]);
            put(out + 16, load16(source + 18), scales[b]);
        }
    }
}

static void x86_q2_k(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 84) {
        float s[16], m[16];
        __m128i packed = load16(source);
        put(s, _mm_and_si128(packed, _mm_set1_epi8(15)), read_half(source + 80));
        put(m, _mm_and_si128(_mm_srli_epi16(packed, 4), _mm_set1_epi8(15)), -read_half(source + 82));
        KEEP_IN_MEMORY(s);
        KEEP_IN_MEMORY(m);
        for (int sub = 0; sub < 16; sub += 2, out += 32) {
            __m256i codes = bits32(load32(source + 16 + sub / 8 * 32), sub % 8, 3);
            put_offset(out, _mm256_castsi256_si128(codes), s[sub], m[sub]);
            put_offset(out + 16, _mm256_extracti128_si256(codes, 1), s[sub + 1], m[sub + 1]);
        }
    }
}

static void x86_q3_k(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 110) {
        float scales[16];
        uint32_t low = read_u32(source + 96), next = read_u32(source + 100), top = read_u32(source + 104);
        __m128i packed = _mm_setr_epi32((int)((low & 0x0f0f0f0f) | (top << 4 & 0x30303030)),
                                        (int)((next & 0x0f0f0f0f) | (top << 2 & 0x30303030)),
                                        (int)((low >> 4 & 0x0f0f0f0f) | (top & 0x30303030)),
                                        (int)((next >> 4 & 0x0f0f0f0f) | (top >> 2 & 0x30303030)));
        put(scales, _mm_sub_epi8(packed, _mm_set1_epi8(32)), read_half(source + 108));
        KEEP_IN_MEMORY(scales);
        __m256i high = load32(source);
        for (int sub = 0; sub < 16; sub += 2, out += 32) {
            __m256i codes = bits32(load32(source + 32 + sub / 8 * 32), sub % 8, 3);
            codes = _mm256_sub_epi8(_mm256_add_epi8(codes, bit_as(high, sub / 2, 4)), _mm256_set1_epi8(4));
            put32(out, codes, scales[sub], scales[sub + 1]);
        }
    }
}

static void x86_q5_k(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 176) {
        float s[16], m[16];
        read_k_offsets(source, s, m);
        __m256i high = load32(source + 16);
        for (int sub = 0; sub < 8; sub++, out += 32) {
            __m256i codes = bits32(load32(source + 48 + sub / 2 * 32), sub % 2 * 4, 15);
            put32_offset(out, _mm256_or_si256(codes, bit_as(high, sub, 16)), s[sub], m[sub]);
        }
    }
}

static void x86_q6_k(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    for (int64_t b = 0; b < num_blocks; b++, source += 210) {
        float s[16];
        put(s, load16(source + 192), read_half(source + 208));
        KEEP_IN_MEMORY(s);
        for (int half = 0; half < 2; half++) {
            __m256i high = load32(source + 128 + half * 32);
            for (int part = 0; part < 4; part++, out += 32) {
                __m256i codes = bits32(load32(source + half * 64 + part % 2 * 32), part / 2 * 4, 15);
                __m256i top = _mm256_slli_epi16(bits32(high, part * 2, 3), 4);
                codes = _mm256_sub_epi8(_mm256_or_si256(codes, top), _mm256_set1_epi8(32));
                put32(out, codes, s[half * 8 + part * 2], s[half * 8 + part * 2 + 1]);
            }
        }
    }
}

/* ---- Dense types. */

static void x86_f16(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    int64_t i = 0;
    for (; i + LANES <= num_blocks; i += LANES) {
#if LANES == 16
        store(out + i, _mm512_cvtph_ps(load32(source + 2 * i)));
#else
        store(out + i, _mm256_cvtph_ps(load16(source + 2 * i)));
#endif
    }
    for (; i < num_blocks; i++) out[i] = read_half(source + 2 * i);
}

static void x86_bf16(const uint8_t *restrict source, int64_t num_blocks, float *restrict out) {
    int64_t i = 0;
    for (; i + LANES <= num_blocks; i += LANES) {
#if LANES == 16
        __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(load32(source + 2 * i)), 16);
        store(out + i, _mm512_castsi512_ps(bits));
#else
        __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(source + 2 * i)), 16);
        store(out + i, _mm256_castsi256_ps(bits));
#endif
    }
    decode_bf16(source + 2 * i, num_blocks - i, out + i);
}

#endif
