/* Functions of vectors of floats, within 4 units in the last place for all floats; NaN gives NaN. */
#define C(x) V(splat_f32)(x)

/* e^r - 1 for |r| <= ln(2) / 2 */
GO_INLINE V(f32) V(expm1_near_0)(V(f32) r) {
    V(f32) p = V(fma)(C(0.001395171725087911f), r, C(0.008369598410072688f));
    p = V(fma)(p, r, C(0.04166618728355654f));
    p = V(fma)(p, r, C(0.16666512888404755f));
    p = V(fma)(p, r, C(0.5000000100980218f));
    return V(fma)(p, r * r, r);
}

/* e^r for |r| <= ln(2) / 2 */
GO_INLINE V(f32) V(exp_near_0)(V(f32) r) {
    V(f32) p = V(fma)(C(0.001395171725087911f), r, C(0.008369598410072688f));
    p = V(fma)(p, r, C(0.04166618728355654f));
    p = V(fma)(p, r, C(0.16666512888404755f));
    p = V(fma)(p, r, C(0.5000000100980218f));
    return V(fma)(V(fma)(p, r, C(1)), r, C(1));
}

/* (2^r - 1) / r for |r| <= 1/2 */
GO_INLINE V(f32) V(exp2m1_over_r)(V(f32) r) {
    V(f32) p = V(fma)(C(0.00015403516590595245f), r, C(0.0013390735257416964f));
    p = V(fma)(p, r, C(0.009618237614631653f));
    p = V(fma)(p, r, C(0.05550357326865196f));
    p = V(fma)(p, r, C(0.24022649228572845f));
    return V(fma)(p, r, C(0.6931471824645996f));
}

/* Adding GO_BIASED to a small number x rounds x to a whole number n, and leaves n + 127, the exponent of 2^n, in the
   low bits. */
#define GO_BIASED 0x1.8000fep23f /* 1.5 * 2^23 + 127 */
/* 2^n for n from -126 to 127 */
GO_INLINE V(f32) V(power_of_biased)(V(f32) biased) { return (V(f32))((V(i32))biased << 23); }

/* r and n with x = r + n ln(2), |r| <= ln(2) / 2; n is a whole number, and biased is n + GO_BIASED. */
GO_INLINE V(f32) V(split_exp_biased)(V(f32) x, V(f32) *biased) {
    *biased = V(fma)(x, C(1.44269504f), C(GO_BIASED));
    const V(f32) n = *biased - GO_BIASED;
    /* ln(2) is in two parts, the first short: its multiples are exact. */
    return V(fma)(n, C(2.12194440e-4f), V(fma)(n, C(-0.693359375f), x));
}

GO_INLINE V(f32) V(split_exp)(V(f32) x, V(f32) *n) {
    V(f32) biased, r = V(split_exp_biased)(x, &biased);
    *n = biased - GO_BIASED;
    return r;
}

/* 2^n for whole n from -126 to 127 */
GO_INLINE V(f32) V(power_of_2)(V(i32) n) { return (V(f32))((n + 127) << 23); }

/* x 2^n for whole n from -252 to 254, rounded once */
GO_INLINE V(f32) V(scale)(V(f32) x, V(f32) n) {
#if GO_LEVEL == 4 && GO_LANES == 16
    return (V(f32))_mm512_scalef_ps((__m512)x, (__m512)n);
#elif GO_LEVEL == 4 && GO_LANES == 8
    return (V(f32))_mm256_scalef_ps((__m256)x, (__m256)n);
#else
    const V(i32) whole = GO_TO(i32, n), half = whole >> 1;
    return x * V(power_of_2)(half) * V(power_of_2)(whole - half);
#endif
}

/* A product that underflows takes some hundred cycles, and masks of attention make many. Below 2^-126 the bits of the
   result are the whole number next to p 2^(n + 149). */
GO_INLINE V(f32) V(exp)(V(f32) x) {
    V(f32) biased, r = V(split_exp_biased)(V(more)(C(-105), V(less)(C(88.8f), x)), &biased);
    const V(f32) p = V(exp_near_0)(r);
#if GO_LEVEL == 4 && (GO_LANES == 16 || GO_LANES == 8)
    const V(f32) n = biased - GO_BIASED;
    const V(f32) whole = V(scale)(p, n + 149) + 0x1p23f; /* rounds to a whole number, which the low bits hold */
    const V(f32) tiny = (V(f32))((V(u32))whole - 0x4b000000);
#if GO_LANES == 16
    const __mmask16 normal = _mm512_cmp_ps_mask((__m512)n, _mm512_set1_ps(-126), _CMP_NLT_UQ);
    return (V(f32))_mm512_mask_scalef_ps((__m512)tiny, normal, (__m512)p, (__m512)n);
#else
    const __mmask8 normal = _mm256_cmp_ps_mask((__m256)n, _mm256_set1_ps(-126), _CMP_NLT_UQ);
    return (V(f32))_mm256_mask_scalef_ps((__m256)tiny, normal, (__m256)p, (__m256)n);
#endif
#else
    /* p 2^(n - 1), which is doubled because 2^128 is infinite, or p 2^(n + 149) */
    const V(i32) low = biased < GO_BIASED - 125;
    const V(i32) exponent = (V(i32))biased + V(select_i32)(low, V(splat_i32)(149), V(splat_i32)(-1));
    const V(f32) y = p * (V(f32))(exponent << 23);
    return V(select_f32)(low, (V(f32))GO_TO(i32, y + 0x1.fffffep-2f), y + y);
#endif
}

GO_INLINE V(f32) V(sigmoid)(V(f32) x) {
    const V(f32) e = V(exp)((V(f32))((V(u32))x | 0x80000000));
    return V(select_f32)(x < 0, e, C(1)) / (1 + e);
}

GO_INLINE V(f32) V(tanh)(V(f32) x) {
    /* t = e^(2 |x|) - 1 without cancellation near 0; the result is t / (t + 2). */
    const V(f32) bounded = V(less)(C(10), V(abs_f32)(x));
    V(f32) biased, r = V(split_exp_biased)(bounded + bounded, &biased);
    const V(f32) power = V(power_of_biased)(biased);
    const V(f32) t = V(fma)(V(expm1_near_0)(r), power, power - 1);
    return V(signed)(t / (t + 2), x);
}

GO_INLINE V(f32) V(erf)(V(f32) x) {
    /* 1 - 2^z with z = log2(1 - erf(t)), a polynomial in t (minimax with the weight of the result's relative error);
       2^z - 1 has no cancellation near 0. From 4 on, the result is rounded to 1. */
    const V(f32) t = V(less)(C(4), V(abs_f32)(x));
    V(f32) z = V(fma)(C(-5.977142063784413e-05f), t, C(0.0005573950475081801f));
    z = V(fma)(z, t, C(-0.0018281507072970271f));
    z = V(fma)(z, t, C(-0.00026520996470935643f));
    z = V(fma)(z, t, C(0.02785228192806244f));
    z = V(fma)(z, t, C(-0.14832158386707306f));
    z = V(fma)(z, t, C(-0.9184446930885315f));
    z = V(fma)(z, t, C(-1.6279070377349854f)) * t;
    const V(f32) biased = z + GO_BIASED, r = z - (biased - GO_BIASED), power = V(power_of_biased)(biased);
    return V(signed)(V(fma)(-(V(exp2m1_over_r)(r) * r), power, 1 - power), x);
}

GO_INLINE V(f32) V(log)(V(f32) x) {
    const V(i32) tiny = x < 0x1p-126f;
    const V(f32) normal = V(select_f32)(tiny, x * 0x1p23f, x);
    /* x = m 2^e with m from sqrt(1/2) to sqrt(2) */
    const V(i32) bits = (V(i32))normal - 0x3f3504f3, e = (bits >> 23) - (tiny & 23);
    const V(f32) m = (V(f32))((bits & 0x7fffff) + 0x3f3504f3) - 1, z = m * m, whole = GO_TO(f32, e);
    V(f32) p = V(fma)(C(7.0376836292e-2f), m, C(-1.1514610310e-1f));
    p = V(fma)(p, m, C(1.1676998740e-1f));
    p = V(fma)(p, m, C(-1.2420140846e-1f));
    p = V(fma)(p, m, C(1.4249322787e-1f));
    p = V(fma)(p, m, C(-1.6668057665e-1f));
    p = V(fma)(p, m, C(2.0000714765e-1f));
    p = V(fma)(p, m, C(-2.4999993993e-1f));
    p = V(fma)(p, m, C(3.3333331174e-1f));
    V(f32) y = V(fma)(whole, C(-2.12194440e-4f), p * m * z);
    y = V(fma)(z, C(-0.5f), y);
    y = V(fma)(whole, C(0.693359375f), m + y);
    y = V(select_f32)(x < __builtin_inff(), y, x); /* also NaN */
    y = V(select_f32)(x == 0, C(-__builtin_inff()), y);
    return V(select_f32)(x < 0, C(__builtin_nanf("")), y);
}
