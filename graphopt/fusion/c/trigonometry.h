/* Sine and cosine, within 4 units in the last place for arguments of any size. */

/* r and the return value q with x = r + q pi / 2 up to multiples of 2 pi, |r| <= pi / 4. */
GO_INLINE V(i32) V(split_angle)(V(f32) x, V(f32) *r) {
    float from[GO_LANES], rest[GO_LANES];
    int32_t turns[GO_LANES], far = 0;
    V(store_f32)(from, x);
    for (int i = 0; i < GO_LANES; i++) {
        /* The first part of pi / 2 has 33 bits: its multiples up to 2^20 are exact. */
        const double wide = from[i], near = __builtin_fabsf(from[i]) < 0x1p20f ? wide : 0;
        const double q = near * 0x1.45f306dc9c883p-1 + 0x1.8p52 - 0x1.8p52;
        rest[i] = (float)(near - q * 0x1.921fb544p0 - q * 0x1.0b4611a626331p-34);
        turns[i] = (int32_t)q;
        far |= !(__builtin_fabsf(from[i]) < 0x1p20f);
    }
    if (__builtin_expect(far, 0))
        for (int i = 0; i < GO_LANES; i++)
            if (!(__builtin_fabsf(from[i]) < 0x1p20f)) turns[i] = go_split_large_angle(from[i], &rest[i]);
    *r = V(load_f32)(rest);
    return V(load_i32)(turns);
}

/* The sine of x = r + q pi / 2 */
GO_INLINE V(f32) V(sin_of)(V(f32) r, V(i32) q) {
    const V(f32) s = r * r;
    V(f32) sine = V(fma)(C(2.718311493989822e-6f), s, C(-1.9839334836096632e-4f));
    sine = V(fma)(sine, s, C(8.3333293858894632e-3f));
    sine = V(fma)(sine, s, C(-1.6666666641626524e-1f));
    sine = V(signed)(V(fma)(sine * s, r, r), r); /* -0.0 stays */
    V(f32) cosine = V(fma)(C(-2.7e-7f), s, C(2.4800998e-5f));
    cosine = V(fma)(cosine, s, C(-1.38888883e-3f));
    cosine = V(fma)(cosine, s, C(4.16666666e-2f));
    cosine = V(fma)(cosine * s, s, V(fma)(s, C(-0.5f), C(1)));
    const V(f32) y = V(select_f32)((q & 1) == 0, sine, cosine);
    return (V(f32))((V(i32))y ^ ((q & 2) << 30));
}

GO_INLINE V(f32) V(sin)(V(f32) x) {
    V(f32) r;
    const V(i32) q = V(split_angle)(x, &r);
    return V(sin_of)(r, q);
}

GO_INLINE V(f32) V(cos)(V(f32) x) {
    V(f32) r;
    const V(i32) q = V(split_angle)(x, &r);
    return V(sin_of)(r, q + 1);
}
