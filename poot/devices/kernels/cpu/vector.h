/* One vector type `vf` of LANES floats for the instruction set this file is compiled for, and the arithmetic on it.

   Written with the vector extensions of GCC and Clang; intrinsics only where those have no word for it. */
#ifndef POOT_VECTOR_H
#define POOT_VECTOR_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* How many of `threads` to use for `work` multiplications: waking others takes as long as some ten thousand of them,
   and as good as nothing is left to win below a few times that. */
INLINE int threads_for(int64_t threads, int64_t work) { return work < 65536 ? 1 : (int)threads; }

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
/* The same numbers in memory: any alignment, any declared type. */
typedef float vf_memory __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

INLINE vf load(const float *p) { return *(const vf_memory *)p; }
INLINE void store(float *p, vf v) { *(vf_memory *)p = v; }
INLINE vf splat(float s) { return s - (vf){0}; }

/* a * b + c, rounded once where the processor has it. */
INLINE vf fma_vf(vf a, vf b, vf c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}

/* The sum of all lanes, halves first. */
INLINE float sum_lanes(vf v) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
    __m256 octet = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
#else
    __m256 octet = v;
#endif
    __m128 quad = _mm_add_ps(_mm256_castps256_ps128(octet), _mm256_extractf128_ps(octet, 1));
    __m128 pair = _mm_add_ps(quad, _mm_movehl_ps(quad, quad));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
#else
    return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

/* Lane j of the result is the sum of the lanes of v[j]. */
INLINE vf sum_each(const vf *v) {
#if defined(__AVX512F__)
    vf quads[4], pairs[2];
    UNROLL for (int i = 0; i < 4; i++) { /* of every four lanes: the sums of four vectors */
        const vf *q = v + 4 * i;
        vf low = _mm512_unpacklo_ps(q[0], q[1]) + _mm512_unpackhi_ps(q[0], q[1]);
        vf high = _mm512_unpacklo_ps(q[2], q[3]) + _mm512_unpackhi_ps(q[2], q[3]);
        quads[i] = _mm512_shuffle_ps(low, high, 0x44) + _mm512_shuffle_ps(low, high, 0xee);
    }
    UNROLL for (int i = 0; i < 2; i++) {
        vf a = quads[2 * i], b = quads[2 * i + 1];
        pairs[i] = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee);
    }
    return _mm512_shuffle_f32x4(pairs[0], pairs[1], 0x88) + _mm512_shuffle_f32x4(pairs[0], pairs[1], 0xdd);
#elif defined(__AVX2__)
    vf quads[2];
    UNROLL for (int i = 0; i < 2; i++) {
        const vf *q = v + 4 * i;
        vf low = _mm256_unpacklo_ps(q[0], q[1]) + _mm256_unpackhi_ps(q[0], q[1]);
        vf high = _mm256_unpacklo_ps(q[2], q[3]) + _mm256_unpackhi_ps(q[2], q[3]);
        quads[i] = _mm256_shuffle_ps(low, high, 0x44) + _mm256_shuffle_ps(low, high, 0xee);
    }
    return _mm256_permute2f128_ps(quads[0], quads[1], 0x20) + _mm256_permute2f128_ps(quads[0], quads[1], 0x31);
#else
    vf sums;
    UNROLL for (int i = 0; i < LANES; i++) sums[i] = sum_lanes(v[i]);
    return sums;
#endif
}

INLINE vf as_float(vi bits) { return (vf)bits; }
INLINE vi as_bits(vf v) { return (vi)v; }

/* condition ? a : b for each lane; a comparison of vectors gives all ones or zero. */
INLINE vf select_vf(vi condition, vf a, vf b) { return as_float((condition & as_bits(a)) | (~condition & as_bits(b))); }

/* The larger of each lane; b where a is NaN. */
INLINE vf max_vf(vf a, vf b) { return select_vf(a > b, a, b); }

/* The largest lane; NaN lanes may or may not be passed over. */
INLINE float max_lanes(vf v) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
    __m256 octet = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
#else
    __m256 octet = v;
#endif
    __m128 quad = _mm_max_ps(_mm256_castps256_ps128(octet), _mm256_extractf128_ps(octet, 1));
    __m128 pair = _mm_max_ps(quad, _mm_movehl_ps(quad, quad));
    return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
#else
    float low = v[0] > v[1] ? v[0] : v[1], high = v[2] > v[3] ? v[2] : v[3];
    return low > high ? low : high;
#endif
}

/* e ** x to about 1e-7 of its value; NaN stays NaN, overflow is infinity, underflow zero.

   x = n ln 2 + r with |r| <= ln 2 / 2 (ln 2 split in two, so that n times its head is exact), e ** r by its Taylor
   series to the seventh power (the rest is below 6e-9), and 2 ** n as two factors, so that neither end is lost. */
INLINE vf exp_vf(vf x) {
    x = select_vf(x > 89.0f, splat(89.0f), x);
    x = select_vf(x < -104.0f, splat(-104.0f), x);
    const vf shift = splat(12582912.0f); /* 1.5 * 2 ** 23: adding it rounds to a whole number in the low bits */
    vf shifted = fma_vf(x, splat(1.44269504088896341f), shift);
    vf n = shifted - shift;
    vf r = fma_vf(n, splat(-0.693359375f), x);
    r = fma_vf(n, splat(2.12194440054690583e-4f), r);
    vf p = splat(1.0f / 5040);
    p = fma_vf(p, r, splat(1.0f / 720));
    p = fma_vf(p, r, splat(1.0f / 120));
    p = fma_vf(p, r, splat(1.0f / 24));
    p = fma_vf(p, r, splat(1.0f / 6));
    p = fma_vf(p, r, splat(0.5f));
    p = fma_vf(p, r, splat(1.0f));
    p = fma_vf(p, r, splat(1.0f));
    vi exponent = as_bits(shifted) - as_bits(shift);
    vi half = exponent >> 1;
    return p * as_float((half + 127) << 23) * as_float((exponent - half + 127) << 23);
}

/* tanh x: its series below 0.3, where the quotient would cancel, and 1 - 2 / (e ** 2|x| + 1) above. */
INLINE vf tanh_vf(vf x) {
    vi sign = as_bits(x) & (int32_t)0x80000000;
    vf magnitude = as_float(as_bits(x) ^ sign);
    vf large = 1.0f - 2.0f / (exp_vf(magnitude + magnitude) + 1.0f);
    vf square = x * x;
    vf p = splat(-1382.0f / 155925);
    p = fma_vf(p, square, splat(62.0f / 2835));
    p = fma_vf(p, square, splat(-17.0f / 315));
    p = fma_vf(p, square, splat(2.0f / 15));
    p = fma_vf(p, square, splat(-1.0f / 3));
    vf small = fma_vf(p * square, magnitude, magnitude);
    return as_float(as_bits(select_vf(magnitude < 0.3f, small, large)) | sign);
}

#endif
