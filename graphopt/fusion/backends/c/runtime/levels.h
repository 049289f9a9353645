/* Which instruction sets this CPU has, as levels of x86-64. */
#ifndef GRAPHOPT_LEVELS_H
#define GRAPHOPT_LEVELS_H

#if defined(__x86_64__)

#include <cpuid.h>

/* The register with the set of registers that the operating system saves. */
static unsigned long long go_saved(void) {
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (unsigned long long)high << 32 | low;
}

static int go_has(unsigned found, unsigned wanted) { return (found & wanted) == wanted; }

/* 4, 3 or 2 for x86-64-v4, -v3 or -v2 (the levels of the System V ABI), 0 for less. */
static int go_cpu_level(void) {
  unsigned a, b, c1, d, b7, c7, c81 = 0;
  if (!__get_cpuid(1, &a, &b, &c1, &d)) return 0;
  if (!__get_cpuid(0x80000001, &a, &b, &c81, &d)) c81 = 0;
  if (!go_has(c1, bit_SSE3 | bit_SSSE3 | bit_SSE4_1 | bit_SSE4_2 | bit_POPCNT | bit_CMPXCHG16B)) return 0;
  if (!go_has(c81, 1u << 0 /* LAHF */)) return 0;
  if (!go_has(c1, bit_AVX | bit_FMA | bit_F16C | bit_MOVBE | bit_OSXSAVE)) return 2;
  if (!go_has(c81, 1u << 5 /* LZCNT */) || (go_saved() & 0x06) != 0x06) return 2;
  if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d)) return 2;
  if (!go_has(b7, bit_AVX2 | bit_BMI | bit_BMI2)) return 2;
  if (!go_has(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL)) return 3;
  return (go_saved() & 0xe6) == 0xe6 ? 4 : 3;
}

#else

static int go_cpu_level(void) { return 0; }

#endif
#endif
