/* The library's exported functions, and the choice between the instruction sets it was compiled for.

   The choice is made on loading, by what the processor and the operating system
   offer, so that one build runs on every processor of its architecture. */
#include "poot_native.h"

#include <stddef.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

const struct poot_block poot_blocks[POOT_NUM_FORMATS] = {
    [POOT_F32] = {"F32", 1, 4},           [POOT_F16] = {"F16", 1, 2},         [POOT_BF16] = {"BF16", 1, 2},
    [POOT_Q4_0] = {"Q4_0", 32, 18},       [POOT_Q4_1] = {"Q4_1", 32, 20},     [POOT_Q5_0] = {"Q5_0", 32, 22},
    [POOT_Q5_1] = {"Q5_1", 32, 24},       [POOT_Q8_0] = {"Q8_0", 32, 34},     [POOT_Q2_K] = {"Q2_K", 256, 84},
    [POOT_Q3_K] = {"Q3_K", 256, 110},     [POOT_Q4_K] = {"Q4_K", 256, 144},   [POOT_Q5_K] = {"Q5_K", 256, 176},
    [POOT_Q6_K] = {"Q6_K", 256, 210},     [POOT_IQ4_NL] = {"IQ4_NL", 32, 18}, [POOT_IQ4_XS] = {"IQ4_XS", 256, 136},
    [POOT_MXFP4] = {"MXFP4", 32, 17},
};

static const struct poot_kernels *kernels = &poot_kernels_generic;

/* The named kernels if they were built and this processor runs them, else NULL. */
static const struct poot_kernels *find(const char *isa) {
    if (strcmp(isa, "generic") == 0) return &poot_kernels_generic;
#ifdef POOT_HAS_X86_VARIANTS
    int has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (strcmp(isa, "avx2") == 0 && has_avx2) return &poot_kernels_avx2;
    int has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (strcmp(isa, "avx512") == 0 && has_avx2 && has_avx512) return &poot_kernels_avx512;
#endif
    return NULL;
}

EXPORT int poot_abi_version(void) { return POOT_ABI_VERSION; }

EXPORT const char *poot_isa(void) { return kernels->isa; }

EXPORT int poot_select_isa(const char *isa) {
    const struct poot_kernels *found = find(isa);
    if (found != NULL) kernels = found;
    return found != NULL;
}

__attribute__((constructor)) static void select_best(void) {
#ifdef POOT_HAS_X86_VARIANTS
    __builtin_cpu_init();
#endif
    (void)(poot_select_isa("avx512") || poot_select_isa("avx2"));
}

/* The number of a format, or -1. */
EXPORT int poot_format_id(const char *label) {
    for (int format = 0; format < POOT_NUM_FORMATS; format++)
        if (strcmp(poot_blocks[format].label, label) == 0) return format;
    return -1;
}

EXPORT void poot_dequantize(const struct poot_dequantize_job *job) { kernels->dequantize(job); }
EXPORT void poot_linear(const struct poot_linear_job *job) { kernels->linear(job); }
EXPORT void poot_attention(const struct poot_attention_job *job) { kernels->attention(job); }
EXPORT void poot_rms_norm(const struct poot_rms_norm_job *job) { kernels->rms_norm(job); }
EXPORT void poot_rope(const struct poot_rope_job *job) { kernels->rope(job); }
EXPORT void poot_gated_silu(const struct poot_gated_job *job) { kernels->gated_silu(job); }
EXPORT void poot_gated_gelu_tanh(const struct poot_gated_job *job) { kernels->gated_gelu_tanh(job); }
EXPORT void poot_add(const struct poot_add_job *job) { kernels->add(job); }
