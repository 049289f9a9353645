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

/* r and n with x = r + n ln(2), |r| <= ln(2) / 2; n is a whole number. */
GO_INLINE V(f32) V(split_exp)(V(f32) x, V(f32) *n) {
    /* Adding 1.5 * 2^23 rounds to a whole number. ln(2) is in two parts, the first short: its multiples are exact. */
    *n = V(fma)(x, C(1.44269504f), C(0x1.8p23f)) - 0x1.8p23f;
    return V(fma)(*n, C(2.12194440e-4f), V(fma)(*n, C(-0.693359375f), x));
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

GO_INLINE V(f32) V(exp)(V(f32) x) {
    V(f32) n, r = V(split_exp)(V(more)(C(-105), V(less)(C(90), x)), &n);
    const V(f32) p = V(expm1_near_0)(r) + 1;
    /* A product that underflows takes some hundred cycles, and masks of attention make many. Below 2^-126 the bits of
       the result are the whole number next to p 2^(n + 149); adding 2^23 rounds to it. */
    const V(f32) whole = p * V(power_of_2)(GO_TO(i32, V(less)(C(-126), n)) + 149) + 0x1p23f;
    const V(f32) tiny = (V(f32))((V(u32))whole - 0x4b000000);
    return V(select_f32)(n < -126, tiny, V(scale)(p, V(select_f32)(n < -126, C(0), n)));
}

GO_INLINE V(f32) V(sigmoid)(V(f32) x) {
    const V(f32) e = V(exp)((V(f32))((V(u32))x | 0x80000000));
    return V(select_f32)(x < 0, e, C(1)) / (1 + e);
}

GO_INLINE V(f32) V(tanh)(V(f32) x) {
    /* t = e^(2 |x|) - 1 without cancellation near 0; the result is t / (t + 2). */
    const V(f32) bounded = V(less)(C(10), V(abs_f32)(x));
    V(f32) n, r = V(split_exp)(bounded + bounded, &n);
    const V(f32) power = V(power_of_2)(GO_TO(i32, n));
    const V(f32) t = V(fma)(V(expm1_near_0)(r), power, power - 1);
    return V(signed)(t / (t + 2), x);
}

GO_INLINE V(f32) V(erf)(V(f32) x) {
    const V(f32) t = V(abs_f32)(x), s = x * x;
    V(f32) p = V(fma)(C(8.316772653141355e-05f), s, C(-0.0008130012018740221f));
    p = V(fma)(p, s, C(0.005199906607671392f));
    p = V(fma)(p, s, C(-0.02685894148266602f));
    p = V(fma)(p, s, C(0.11283687188172735f));
    p = V(fma)(p, s, C(-0.37612633188386896f));
    p = V(fma)(p, s, C(0.12837916657980417f));
    /* Beyond: 1 - exp(-q(t)) */
    const V(f32) u = V(less)(C(4), t);
    V(f32) q = V(fma)(C(1.1231465230411654e-05f), u, C(-0.0003228053901466037f));
    q = V(fma)(q, u, C(0.003642465011535151f));
    q = V(fma)(q, u, C(-0.02376207503772918f));
    q = V(fma)(q, u, C(0.10623689109558997f));
    q = V(fma)(q, u, C(0.635151308662006f));
    q = V(fma)(q, u, C(0.12864849206198228f));
    V(f32) n, r = V(split_exp)(-V(fma)(q, u, u), &n);
    const V(f32) far = 1 - V(fma)(V(expm1_near_0)(r), V(power_of_2)(GO_TO(i32, n)), V(power_of_2)(GO_TO(i32, n)));
    return V(select_f32)(t < 0.921875f, V(fma)(p, x, x), V(signed)(far, x));
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
