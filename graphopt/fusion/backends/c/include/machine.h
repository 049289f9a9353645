/* Functions of vectors of floats that a machine has one instruction for. fma may be rounded once or twice. */
#if GO_LEVEL >= 2 && GO_LANES == 16
GO_INLINE V(f32) V(sqrt)(V(f32) x) { return (V(f32))_mm512_sqrt_ps((__m512)x); }
GO_INLINE V(f32) V(floor)(V(f32) x) { return (V(f32))_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEG_INF | 8); }
GO_INLINE V(f32) V(ceil)(V(f32) x) { return (V(f32))_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_POS_INF | 8); }
GO_INLINE V(f32) V(trunc)(V(f32) x) { return (V(f32))_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_ZERO | 8); }
GO_INLINE V(f32) V(round_even)(V(f32) x) { return (V(f32))_mm512_roundscale_ps((__m512)x, 8); }
GO_INLINE V(f32) V(fma)(V(f32) a, V(f32) b, V(f32) c) {
    return (V(f32))_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
GO_INLINE V(f32) V(less)(V(f32) a, V(f32) b) { return (V(f32))_mm512_min_ps((__m512)a, (__m512)b); }
GO_INLINE V(f32) V(more)(V(f32) a, V(f32) b) { return (V(f32))_mm512_max_ps((__m512)a, (__m512)b); }
#elif GO_LEVEL >= 3 && GO_LANES == 8
GO_INLINE V(f32) V(sqrt)(V(f32) x) { return (V(f32))_mm256_sqrt_ps((__m256)x); }
GO_INLINE V(f32) V(floor)(V(f32) x) { return (V(f32))_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEG_INF | 8); }
GO_INLINE V(f32) V(ceil)(V(f32) x) { return (V(f32))_mm256_round_ps((__m256)x, _MM_FROUND_TO_POS_INF | 8); }
GO_INLINE V(f32) V(trunc)(V(f32) x) { return (V(f32))_mm256_round_ps((__m256)x, _MM_FROUND_TO_ZERO | 8); }
GO_INLINE V(f32) V(round_even)(V(f32) x) { return (V(f32))_mm256_round_ps((__m256)x, 8); }
GO_INLINE V(f32) V(fma)(V(f32) a, V(f32) b, V(f32) c) {
    return (V(f32))_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
GO_INLINE V(f32) V(less)(V(f32) a, V(f32) b) { return (V(f32))_mm256_min_ps((__m256)a, (__m256)b); }
GO_INLINE V(f32) V(more)(V(f32) a, V(f32) b) { return (V(f32))_mm256_max_ps((__m256)a, (__m256)b); }
#elif GO_LEVEL >= 2 && GO_LANES == 4
GO_INLINE V(f32) V(sqrt)(V(f32) x) { return (V(f32))_mm_sqrt_ps((__m128)x); }
GO_INLINE V(f32) V(floor)(V(f32) x) { return (V(f32))_mm_round_ps((__m128)x, _MM_FROUND_TO_NEG_INF | 8); }
GO_INLINE V(f32) V(ceil)(V(f32) x) { return (V(f32))_mm_round_ps((__m128)x, _MM_FROUND_TO_POS_INF | 8); }
GO_INLINE V(f32) V(trunc)(V(f32) x) { return (V(f32))_mm_round_ps((__m128)x, _MM_FROUND_TO_ZERO | 8); }
GO_INLINE V(f32) V(round_even)(V(f32) x) { return (V(f32))_mm_round_ps((__m128)x, 8); }
#if GO_LEVEL >= 3
GO_INLINE V(f32) V(fma)(V(f32) a, V(f32) b, V(f32) c) {
    return (V(f32))_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
}
#else
GO_INLINE V(f32) V(fma)(V(f32) a, V(f32) b, V(f32) c) { return a * b + c; }
#endif
GO_INLINE V(f32) V(less)(V(f32) a, V(f32) b) { return (V(f32))_mm_min_ps((__m128)a, (__m128)b); }
GO_INLINE V(f32) V(more)(V(f32) a, V(f32) b) { return (V(f32))_mm_max_ps((__m128)a, (__m128)b); }
#else
#define GO_EACH(name, value) \
    GO_INLINE V(f32) V(name)(V(f32) x) { \
        V(f32) y = {0}; \
        for (int i = 0; i < GO_LANES; i++) y[i] = value(x[i]); \
        return y; \
    }
GO_EACH(sqrt, __builtin_sqrtf)
GO_EACH(floor, __builtin_floorf)
GO_EACH(ceil, __builtin_ceilf)
GO_EACH(trunc, __builtin_truncf)
GO_EACH(round_even, __builtin_rintf)
#undef GO_EACH
#if defined(__aarch64__) && GO_LANES == 4
GO_INLINE V(f32) V(fma)(V(f32) a, V(f32) b, V(f32) c) {
    return (V(f32))vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
#else
GO_INLINE V(f32) V(fma)(V(f32) a, V(f32) b, V(f32) c) { return a * b + c; }
#endif
/* The smaller and the larger; b where one is NaN. */
GO_INLINE V(f32) V(less)(V(f32) a, V(f32) b) { return V(select_f32)(a < b, a, b); }
GO_INLINE V(f32) V(more)(V(f32) a, V(f32) b) { return V(select_f32)(a > b, a, b); }
#endif

/* x / by, rounded like a division, where `inverse` is 1 / by, rounded: the product, corrected by the remainder of x
   (Markstein's theorem; by's mantissa is not all ones). Below 2^-100 the last place may differ. */
GO_INLINE V(f32) V(div_by)(V(f32) x, V(f32) by, V(f32) inverse) {
#if GO_LEVEL >= 3 || defined(__aarch64__)
    const V(f32) q = x * inverse, mended = V(fma)(V(fma)(-q, by, x), inverse, q);
    /* The remainder of infinity is NaN, and -0.0 + 0.0 is 0.0. */
    return V(select_f32)(mended == mended, (V(f32))((V(u32))mended | ((V(u32))q & 0x80000000)), q);
#else
    (void)inverse;
    return x / by;
#endif
}

/* NaN where an operand is NaN. */
GO_INLINE V(f32) V(min_f32)(V(f32) a, V(f32) b) { return V(select_f32)(a != a, a, V(less)(a, b)); }
GO_INLINE V(f32) V(max_f32)(V(f32) a, V(f32) b) { return V(select_f32)(a != a, a, V(more)(a, b)); }

GO_INLINE V(f32) V(abs_f32)(V(f32) x) { return (V(f32))((V(u32))x & 0x7fffffff); }
/* The magnitude of x and the sign of y; x is not negative. */
GO_INLINE V(f32) V(signed)(V(f32) x, V(f32) y) { return (V(f32))((V(u32))x | ((V(u32))y & 0x80000000)); }
