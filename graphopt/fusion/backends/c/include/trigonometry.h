/* Sine and cosine, within 4 units in the last place for arguments of any size. */

/* Whether any lane is yes. */
GO_INLINE int V(any)(V(i32) yes) {
#if GO_LEVEL == 4 && GO_LANES == 16
    return _mm512_test_epi32_mask((__m512i)yes, (__m512i)yes) != 0;
#elif GO_LEVEL >= 3 && GO_LANES == 8
    return !_mm256_testz_si256((__m256i)yes, (__m256i)yes);
#elif GO_LEVEL >= 2 && GO_LANES == 4
    return !_mm_testz_si128((__m128i)yes, (__m128i)yes);
#else
    int32_t any = 0;
    for (int i = 0; i < GO_LANES; i++) any |= yes[i];
    return any != 0;
#endif
}

/* r and the return value q, modulo 4, with x = r + q pi / 2 up to multiples of 2 pi, |r| not much above pi / 4. */
GO_INLINE V(i32) V(split_angle)(V(f32) x, V(f32) *r) {
    /* Adding 1.5 * 2^23 rounds to a whole number, which is in the last bits. The parts of pi / 2 are positive, so that
       -0.0 stays. */
    const V(f32) sum = V(fma)(x, C(0x1.45f306p-1f), C(0x1.8p23f)), q = -(sum - 0x1.8p23f);
#if GO_LEVEL >= 3 || defined(__aarch64__)
    /* Neither the product with the first part nor the remainder of x is rounded. */
    const V(i32) far = ~(V(abs_f32)(x) < 0x1p17f);
    *r = V(fma)(q, C(0x1.846988p-48f), V(fma)(q, C(0x1.4442dp-24f), V(fma)(q, C(0x1.921fb4p0f), x)));
#else
    /* Three parts of 11 bits, whose products with 13 bits are exact */
    const V(i32) far = ~(V(abs_f32)(x) < 0x1p13f);
    *r = x + q * 0x1.92p0f + q * 0x1.fb4p-12f + q * 0x1.444p-24f + q * 0x1.68c234p-39f;
#endif
    if (__builtin_expect(V(any)(far), 0)) {
        float from[GO_LANES], rest[GO_LANES];
        int32_t turns[GO_LANES];
        V(store_f32)(from, x);
        go_split_angles(from, rest, turns, GO_LANES);
        *r = V(load_f32)(rest);
        return V(load_i32)(turns);
    }
    return (V(i32))sum;
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
