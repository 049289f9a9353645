/* Powers and remainders of real numbers, with the special cases of C. Logarithms have two parts, the second one
   being the rounding error of the first: the method of fdlibm's e_powf.c, with fused products where there are any. */

/* a b - product, where that is a b, rounded */
GO_INLINE V(f32) V(lost)(V(f32) a, V(f32) b, V(f32) product) {
#if GO_LEVEL >= 3 || defined(__aarch64__)
    return V(fma)(a, b, -product);
#else
    /* Products of halves of 12 bits are exact. */
    const V(f32) c = (V(f32))((V(u32))a & 0xfffff000), d = (V(f32))((V(u32))b & 0xfffff000);
    return ((c * d - product) + c * (b - d) + (a - c) * d) + (a - c) * (b - d);
#endif
}

/* log2(x) in two parts, for x > 0 */
GO_INLINE V(f32) V(log2_in_parts)(V(f32) x, V(f32) *low) {
    const V(i32) tiny = x < 0x1p-126f;
    const V(i32) bits = (V(i32))V(select_f32)(tiny, x * 0x1p24f, x), j = bits & 0x7fffff;
    /* x = a 2^n with a near 1, or, where k holds, near 1.5 */
    const V(i32) up = j >= 0x5db3d7, k = (j > 0x1cc471) & ~up;
    const V(f32) n = GO_TO(f32, (bits >> 23) - 127 - (tiny & 24) - up);
    const V(f32) a = (V(f32))((j | 0x3f800000) - (up & 0x800000));
    /* With s = (a - base) / (a + base), log(a / base) is 2 / 3 s (3 + s^2 + r). */
    const V(f32) base = V(select_f32)(k, C(1.5f), C(1)), u = a - base, sum = a + base, v = 1 / sum, s = u * v;
    const V(f32) s_low = -v * (V(lost)(s, sum, u) + s * (a - (sum - base)));
    const V(f32) s2 = s * s;
    V(f32) r = V(fma)(s2, C(2.0697501302e-01f), C(2.3066075146e-01f));
    r = V(fma)(r, s2, C(2.7272811532e-01f));
    r = V(fma)(r, s2, C(3.3333334327e-01f));
    r = V(fma)(r, s2, C(4.2857143283e-01f));
    r = V(fma)(r, s2, C(6.0000002384e-01f));
    r = V(fma)(r * s2, s2, V(fma)(s_low, s + s, V(lost)(s, s, s2)));
    const V(f32) t = 3 + s2, t_low = (s2 - (t - 3)) + r, main = s * t;
    const V(f32) side = V(lost)(s, t, main) + V(fma)(s_low, t, t_low * s);
    const V(f32) p = main + side, p_low = side - (p - main);
    const V(f32) high = p * 0x1.ec709ep-1f, shift = V(select_f32)(k, C(0x1.2b8p-1f), C(0));
    V(f32) rest = V(fma)(p, C(-0x1.e2fe02p-28f), V(lost)(p, C(0x1.ec709ep-1f), high));
    rest = V(fma)(p_low, C(0x1.ec709ep-1f), rest) + V(select_f32)(k, C(0x1.a39fbep-20f), C(0));
    const V(f32) total = ((high + rest) + shift) + n;
    *low = rest - (((total - n) - shift) - high);
    return total;
}

/* x^y, given |x|^y where neither is special. */
GO_INLINE V(f32) V(special_power)(V(f32) x, V(f32) y, V(f32) power) {
    const V(f32) a = V(abs_f32)(x), b = V(abs_f32)(y);
    const V(i32) whole = V(trunc)(y) == y;
    const V(i32) odd = whole & (b < 0x1p24f) & ((GO_TO(i32, y) & 1) != 0);
    const V(i32) zero = a == 0, infinite = a == __builtin_inff(), grows = (V(i32))((y > 0) ^ zero);
    power = V(select_f32)(zero | infinite, V(select_f32)(grows, C(__builtin_inff()), C(0)), power);
    power = (V(f32))((V(i32))power ^ (odd & (V(i32))x & (V(i32))C(-0.0f)));
    power = V(select_f32)((x < 0) & ~infinite & ~whole, C(__builtin_nanf("")), power);
    power = V(select_f32)(x != x, x, V(select_f32)(y != y, y, power));
    return V(select_f32)((V(i32))((y == 0) | (x == 1)), C(1), power);
}

GO_INLINE V(f32) V(pow)(V(f32) x, V(f32) y) {
    /* Beyond 2^33 all exponents act alike. */
    const V(f32) exponent = V(more)(C(-0x1p33f), V(less)(C(0x1p33f), y));
    V(f32) log_low, log_high = V(log2_in_parts)(V(abs_f32)(x), &log_low);
    const V(f32) high = exponent * log_high;
    const V(f32) low = V(fma)(exponent, log_low, V(lost)(exponent, log_high, high));
    /* Beyond these bounds all is 0 or infinite. */
    const V(f32) n = V(round_even)(V(more)(C(-155), V(less)(C(130), high + low)));
    const V(f32) t = V(more)(C(-1), V(less)(C(1), (high - n) + low));
    const V(f32) power = V(scale)(1 + V(expm1_near_0)(t * 0x1.62e43p-1f), n);
    const V(i32) special = ~((x > 0) & (x < __builtin_inff()) & (V(abs_f32)(y) < 0x1p33f));
    return __builtin_expect(V(any)(special), 0) ? V(special_power)(x, y, power) : power;
}

GO_INLINE V(f32) V(fmod)(V(f32) x, V(f32) y) {
    V(f32) z = {0};
    for (int i = 0; i < GO_LANES; i++) z[i] = go_remainder(x[i], y[i]);
    return z;
}
