/* Features of the CPU level that this text is compiled for: GO_LEVEL is 2, 3 or 4 for x86-64-v2, v3 and v4, and 0
   for any other machine. The text needs the vector extensions of gcc or clang, and -ffp-contract=off. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef GO_LEVEL
#define GO_LEVEL 0
#endif
#if GO_LEVEL >= 2
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wpsabi" /* Vectors are passed between inlined functions alone. */
#endif

/* The size of a vector register in bytes. */
#if GO_LEVEL == 4
#define GO_BYTES 64
#elif GO_LEVEL == 3
#define GO_BYTES 32
#else
#define GO_BYTES 16
#endif

/* Memory traffic of a chunk of work, in bytes: less than two chunks are not split. And how many work items are
   enough for all threads; of how many chunks each has a fixed share of many items. */
#ifndef GO_CHUNK
#define GO_CHUNK 65536
#endif
#ifndef GO_CHUNKS
#define GO_CHUNKS 512
#endif
#ifndef GO_ENOUGH
#define GO_ENOUGH 64
#endif

/* Outputs of this size in bytes exceed the caches of a core, and would displace other data from shared caches. They are
   written by streaming stores, before which no cache reads the memory. */
#ifndef GO_FAR
#define GO_FAR (32 << 20)
#endif
#define GO_LINE 64 /* bytes that caches hold and memory moves at a time */

#define GO_INLINE static inline __attribute__((always_inline, unused))
#define GO_NOINLINE static __attribute__((noinline, unused)) /* one copy for all kernels of a file */
#define GO_UNROLL _Pragma("GCC unroll 16")
#define GO_JOIN_(a, b) a##b
#define GO_JOIN(a, b) GO_JOIN_(a, b)

GO_INLINE int64_t go_least(int64_t a, int64_t b) { return a < b ? a : b; }

/* a / b, rounded up, and a, rounded up to a multiple of b; for b > 0. */
GO_INLINE int64_t go_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
GO_INLINE int64_t go_round_up(int64_t a, int64_t b) { return go_ceil_div(a, b) * b; }

/* The first line in memory at or after `p`. */
GO_INLINE void *go_next_line(void *p) { return (void *)(((uintptr_t)p + GO_LINE - 1) / GO_LINE * GO_LINE); }

/* n elements out of 0 ... 63 bytes, in powers of two. */
GO_INLINE void go_copy_part(void *to, const void *from, size_t n) {
    char *t = to;
    const char *f = from;
#define GO_STEP(bytes) \
    if (n & bytes) memcpy(t, f, bytes), t += bytes, f += bytes
    GO_STEP(32);
    GO_STEP(16);
    GO_STEP(8);
    GO_STEP(4);
    GO_STEP(2);
    GO_STEP(1);
#undef GO_STEP
}

/* The first m elements of `width` bytes of a vector of `bytes`, which holds zeros. */
GO_INLINE void go_load_part(void *to, const void *from, size_t bytes, size_t width, int m) {
#if GO_LEVEL == 4
    if (bytes <= 64) {
        const uint64_t yes = _bzhi_u64(~0ULL, (unsigned)m);
        const __m512i x = width == 1 ? _mm512_maskz_loadu_epi8(yes, from)
                        : width == 2 ? _mm512_maskz_loadu_epi16((__mmask32)yes, from)
                        : width == 4 ? _mm512_maskz_loadu_epi32((__mmask16)yes, from)
                                     : _mm512_maskz_loadu_epi64((__mmask8)yes, from);
        memcpy(to, &x, bytes);
        return;
    }
#elif GO_LEVEL == 3
    if (bytes == 32 && width == 4) {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i x = _mm256_maskload_epi32(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(m), lane));
        memcpy(to, &x, 32);
        return;
    }
#endif
    if ((size_t)m * width >= bytes) memcpy(to, from, bytes);
    else if (bytes <= 64) go_copy_part(to, from, (size_t)m * width);
    else memcpy(to, from, (size_t)m * width);
}

GO_INLINE void go_store_part(void *to, const void *from, size_t bytes, size_t width, int m) {
#if GO_LEVEL == 4
    if (bytes <= 64) {
        const uint64_t yes = _bzhi_u64(~0ULL, (unsigned)m);
        __m512i x = _mm512_setzero_si512();
        memcpy(&x, from, bytes);
        if (width == 1) _mm512_mask_storeu_epi8(to, yes, x);
        else if (width == 2) _mm512_mask_storeu_epi16(to, (__mmask32)yes, x);
        else if (width == 4) _mm512_mask_storeu_epi32(to, (__mmask16)yes, x);
        else _mm512_mask_storeu_epi64(to, (__mmask8)yes, x);
        return;
    }
#elif GO_LEVEL == 3
    if (bytes == 32 && width == 4) {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        __m256i x;
        memcpy(&x, from, 32);
        _mm256_maskstore_epi32(to, _mm256_cmpgt_epi32(_mm256_set1_epi32(m), lane), x);
        return;
    }
#endif
    if ((size_t)m * width >= bytes) memcpy(to, from, bytes);
    else if (bytes <= 64) go_copy_part(to, from, (size_t)m * width);
    else memcpy(to, from, (size_t)m * width);
}

/* Whether an output is to be written past caches, if its rows are lines. */
GO_INLINE int go_far(const void *output, int rank, const int64_t *dims, int64_t width) {
    for (int axis = 0; axis < rank; axis++) width *= dims[axis];
    return width >= GO_FAR && (uintptr_t)output % GO_LINE == 0;
}

/* Writes past caches; `to` is a multiple of a register's bytes, or of `bytes` if that is less. */
GO_INLINE void go_stream(void *to, const void *from, size_t bytes) {
#if GO_LEVEL >= 2
    const char *f = from;
    char *t = to;
#if GO_LEVEL == 4
    for (; bytes >= 64; bytes -= 64, f += 64, t += 64) _mm512_stream_si512((void *)t, _mm512_loadu_si512(f));
#endif
#if GO_LEVEL >= 3
    for (; bytes >= 32; bytes -= 32, f += 32, t += 32) _mm256_stream_si256((void *)t, _mm256_loadu_si256((const void *)f));
#endif
    for (; bytes >= 16; bytes -= 16, f += 16, t += 16) _mm_stream_si128((void *)t, _mm_loadu_si128((const void *)f));
    memcpy(t, f, bytes);
#else
    memcpy(to, from, bytes);
#endif
}

/* Makes the results of streaming stores visible to other threads. */
GO_INLINE void go_streamed(void) {
#if GO_LEVEL >= 2
    _mm_sfence();
#endif
}
