/* Few rows of activations times stored weights.

   A tile of TILE_OUTPUTS weight rows is decoded, a chunk at a time, into a buffer that stays in the first-level cache,
   and multiplied there with every row of x: the weights are read and decoded once for all rows. Each output has two
   vector accumulators, for the even and the odd vectors of its row, whatever tile it falls in; so its bits depend on
   its weight row and its x alone. */
#ifndef POOT_LINEAR_H
#define POOT_LINEAR_H

#include "decode.h"

#define TILE_OUTPUTS 4
#define MAX_ROWS 8
#define CHUNK_WEIGHTS 768 /* TILE_OUTPUTS chunks and four rows of x take 24 KiB */
#define STEP_WEIGHTS 32   /* the smallest block; a multiple of two vectors */

/* Adds the products of `outputs` weight rows and `rows` rows of x over `length` weights, a multiple of STEP_WEIGHTS.
   Inlined with constant `outputs` and `rows` of a product up to 8, so that the accumulators are registers. */
INLINE void dot_tile(const int outputs, const int rows, const float *const *w, const float *x, int64_t x_stride,
                     int64_t length, float (*sums)[MAX_ROWS][2 * LANES]) {
    vf even[8], odd[8];
    UNROLL for (int o = 0; o < outputs; o++) {
        UNROLL for (int r = 0; r < rows; r++) {
            even[o * rows + r] = load(sums[o][r]);
            odd[o * rows + r] = load(sums[o][r] + LANES);
        }
    }
    for (int64_t i = 0; i < length; i += 2 * LANES) {
        vf first[4], second[4];
        UNROLL for (int o = 0; o < outputs; o++) {
            first[o] = load(w[o] + i);
            second[o] = load(w[o] + i + LANES);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            vf x_first = load(x + r * x_stride + i), x_second = load(x + r * x_stride + i + LANES);
            UNROLL for (int o = 0; o < outputs; o++) {
                even[o * rows + r] = fma_vf(first[o], x_first, even[o * rows + r]);
                odd[o * rows + r] = fma_vf(second[o], x_second, odd[o * rows + r]);
            }
        }
    }
    UNROLL for (int o = 0; o < outputs; o++) {
        UNROLL for (int r = 0; r < rows; r++) {
            store(sums[o][r], even[o * rows + r]);
            store(sums[o][r] + LANES, odd[o * rows + r]);
        }
    }
}

#define DEFINE_DOT(outputs, rows)                                                                                      \
    static void dot_##outputs##x##rows(const float *const *w, const float *x, int64_t x_stride, int64_t length,        \
                                       float (*sums)[MAX_ROWS][2 * LANES]) {                                           \
        dot_tile(outputs, rows, w, x, x_stride, length, sums);                                                         \
    }

typedef void dot_function(const float *const *w, const float *x, int64_t x_stride, int64_t length,
                          float (*sums)[MAX_ROWS][2 * LANES]);

/* How many outputs one register tile takes for 1, 2, 3 and 4 rows: both accumulators of each must fit the registers. */
#if LANES == 16 || defined(__aarch64__)
DEFINE_DOT(4, 1)
DEFINE_DOT(4, 2)
DEFINE_DOT(2, 3)
DEFINE_DOT(2, 4)
static const int tile_outputs[4] = {4, 4, 2, 2};
static dot_function *const tile_dots[4] = {dot_4x1, dot_4x2, dot_2x3, dot_2x4};
#else
DEFINE_DOT(4, 1)
DEFINE_DOT(2, 2)
static const int tile_outputs[4] = {4, 2, 1, 1};
#endif
DEFINE_DOT(1, 1)
DEFINE_DOT(1, 2)
DEFINE_DOT(1, 3)
DEFINE_DOT(1, 4)
static dot_function *const single_dots[4] = {dot_1x1, dot_1x2, dot_1x3, dot_1x4};
#if LANES != 16 && !defined(__aarch64__)
static dot_function *const tile_dots[4] = {dot_4x1, dot_2x2, dot_1x3, dot_1x4};
#endif

/* Starts to load `bytes` bytes that the next tile reads: between its bursts of loads the processor's own prefetcher
   falls behind. Addresses past the end of the weight are harmless. */
INLINE void prefetch(const uint8_t *p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

/* Computes outputs `first` to `first + outputs` of rows `first_row` to `first_row + rows`. */
static void linear_tile(const struct poot_linear_job *job, int64_t first, int outputs, int64_t first_row, int rows) {
    const struct poot_block *block = &poot_blocks[job->format];
    decode_function *decode = decoders[job->format];
    int64_t row_bytes = job->in_features / block->weights * block->bytes;
    const uint8_t *weight = job->weight + first * row_bytes;
    const float *x = job->x + first_row * job->x_stride;
    _Alignas(64) float decoded[TILE_OUTPUTS][CHUNK_WEIGHTS];
    _Alignas(64) float sums[TILE_OUTPUTS][MAX_ROWS][2 * LANES];
    for (int o = 0; o < outputs; o++) memset(sums[o], 0, (size_t)rows * sizeof sums[o][0]);

    int is_wide = block->bytes >= block->weights; /* smaller weights are read faster than they are decoded */
    int unit = block->weights > STEP_WEIGHTS ? block->weights : STEP_WEIGHTS;
    int64_t whole = job->in_features / unit * unit; /* less than in_features only for dense weights */
    int64_t chunks = (whole + CHUNK_WEIGHTS - 1) / CHUNK_WEIGHTS;
    int64_t chunk = chunks ? (whole / unit + chunks - 1) / chunks * unit : 0;
    for (int64_t start = 0; start < whole; start += chunk) {
        int64_t length = whole - start < chunk ? whole - start : chunk;
        const float *w[TILE_OUTPUTS];
        for (int o = 0; o < outputs; o++) {
            const uint8_t *source = weight + o * row_bytes + start / block->weights * block->bytes;
            if (is_wide) prefetch(source + TILE_OUTPUTS * row_bytes, length / block->weights * block->bytes);
            w[o] = job->format == POOT_F32 ? (const float *)source : decoded[o];
            if (job->format != POOT_F32) decode(source, length / block->weights, decoded[o]);
        }
        for (int row = 0; row < rows; row += 4) {
            int kind = rows - row < 4 ? rows - row - 1 : 3;
            const float *x_rows = x + row * job->x_stride + start;
            int o = 0;
            for (; o + tile_outputs[kind] <= outputs; o += tile_outputs[kind])
                tile_dots[kind](w + o, x_rows, job->x_stride, length,
                                (float(*)[MAX_ROWS][2 * LANES]) & sums[o][row]);
            for (; o < outputs; o++)
                single_dots[kind](w + o, x_rows, job->x_stride, length,
                                  (float(*)[MAX_ROWS][2 * LANES]) & sums[o][row]);
        }
    }

    for (int o = 0; o < outputs; o++) {
        int tail = (int)(job->in_features - whole);
        if (tail) decode(weight + o * row_bytes + whole * block->bytes, tail, decoded[o]);
        for (int row = 0; row < rows; row++) {
            float total = sum_lanes(load(sums[o][row]) + load(sums[o][row] + LANES));
            for (int i = 0; i < tail; i++) total += decoded[o][i] * x[row * job->x_stride + whole + i];
            if (job->bias) total += job->bias[first + o];
            job->y[(first_row + row) * job->y_stride + first + o] = total;
        }
    }
}

static void linear_tiles(const struct poot_linear_job *job, int64_t tile, int64_t tiles, int64_t first_row, int rows) {
    for (int64_t end = tile + tiles; tile < end; tile++) {
        int64_t first = tile * TILE_OUTPUTS, left = job->out_features - first;
        linear_tile(job, first, (int)(left < TILE_OUTPUTS ? left : TILE_OUTPUTS), first_row, rows);
    }
}

static void linear(const struct poot_linear_job *job) {
    int64_t tiles = (job->out_features + TILE_OUTPUTS - 1) / TILE_OUTPUTS;
    int threads = threads_for(job->threads, job->out_features * job->in_features * job->rows);
    /* Threads take runs of tiles as they go, so that one which is held up does not hold up the rest. */
    int64_t run = tiles / (8 * threads) + 1;
    for (int64_t first_row = 0; first_row < job->rows; first_row += MAX_ROWS) {
        int rows = (int)(job->rows - first_row < MAX_ROWS ? job->rows - first_row : MAX_ROWS);
        if (threads <= 1) {
            linear_tiles(job, 0, tiles, first_row, rows);
            continue;
        }
#pragma omp parallel for schedule(dynamic) num_threads(threads)
        for (int64_t tile = 0; tile < tiles; tile += run)
            linear_tiles(job, tile, tiles - tile < run ? tiles - tile : run, first_row, rows);
    }
}

#endif
