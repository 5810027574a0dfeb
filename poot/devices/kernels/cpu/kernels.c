/* Every kernel for one instruction set. setup.py compiles this file once for each, with the flags of that set and
   POOT_ISA naming it. */
#include "attention.h"
#include "decode.h"
#include "elementwise.h"
#include "linear.h"
#include "poot_native.h"

#ifndef POOT_ISA
#define POOT_ISA generic
#endif
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

const struct poot_kernels JOIN(poot_kernels_, POOT_ISA) = {
    TEXT(POOT_ISA), dequantize, linear, attention, rms_norm, rope, gated_silu, gated_gelu_tanh, add,
};
