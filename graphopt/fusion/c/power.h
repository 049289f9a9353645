/* Powers and remainders of real numbers, with the special cases of C. The logarithm is held in two parts, of which
   the first has 12 bits, so that its products are exact: the method of fdlibm's e_powf.c. */
GO_INLINE V(f32) V(short)(V(f32) x) { return (V(f32))((V(u32))x & 0xfffff000); }

/* log2(x) in two parts, for x > 0 */
GO_INLINE V(f32) V(log2_in_parts)(V(f32) x, V(f32) *low) {
    const V(i32) tiny = x < 0x1p-126f;
    const V(i32) bits = (V(i32))V(select_f32)(tiny, x * 0x1p24f, x), j = bits & 0x7fffff;
    /* x = a 2^n with a near 1, or, where k holds, near 1.5 */
    const V(i32) up = j >= 0x5db3d7, k = (j > 0x1cc471) & ~up;
    const V(f32) n = GO_TO(f32, (bits >> 23) - 127 - (tiny & 24) - up);
    const V(f32) a = (V(f32))((j | 0x3f800000) - (up & 0x800000));
    const V(f32) base = V(select_f32)(k, C(1.5f), C(1)), u = a - base, v = 1 / (a + base), s = u * v;
    const V(f32) s_high = V(short)(s), sum_high = V(short)(a + base), sum_low = a - (sum_high - base);
    const V(f32) s_low = v * ((u - s_high * sum_high) - s_high * sum_low);
    V(f32) s2 = s * s, r = C(2.0697501302e-01f);
    r = r * s2 + 2.3066075146e-01f;
    r = r * s2 + 2.7272811532e-01f;
    r = r * s2 + 3.3333334327e-01f;
    r = r * s2 + 4.2857143283e-01f;
    r = r * s2 + 6.0000002384e-01f;
    r = r * s2 * s2 + s_low * (s_high + s);
    s2 = s_high * s_high;
    const V(f32) t_high = V(short)(3 + s2 + r), t_low = r - ((t_high - 3) - s2);
    const V(f32) main = s_high * t_high, side = s_low * t_high + t_low * s;
    const V(f32) p_high = V(short)(main + side), p_low = side - (p_high - main);
    const V(f32) high = p_high * 9.6191406250e-01f, shift = V(select_f32)(k, C(5.84960938e-01f), C(0));
    const V(f32) rest = p_high * -1.1736857402e-04f + p_low * 9.6179670095e-01f +
                        V(select_f32)(k, C(1.56322085e-06f), C(0));
    const V(f32) total = V(short)(((high + rest) + shift) + n);
    *low = rest - (((total - n) - shift) - high);
    return total;
}

GO_INLINE V(f32) V(pow)(V(f32) x, V(f32) y) {
    const V(f32) a = V(abs_f32)(x), b = V(abs_f32)(y);
    /* Beyond 2^33 all exponents act alike. */
    const V(f32) exponent = V(more)(C(-0x1p33f), V(less)(C(0x1p33f), y));
    V(f32) log_low, log_high = V(log2_in_parts)(a, &log_low);
    const V(f32) y_high = V(short)(exponent);
    V(f32) low = (exponent - y_high) * log_high + exponent * log_low, high = y_high * log_high;
    const V(f32) z = low + high;
    const V(i32) inside = (z < 130) & (z > -155);
    high = V(select_f32)(inside, high, V(select_f32)(z > 0, C(130), C(-155)));
    low = V(select_f32)(inside, low, C(0));
    const V(f32) n = V(round_even)(high + low);
    high -= n;
    const V(f32) t = (V(f32))((V(u32))(high + low) & 0xffff8000);
    const V(f32) u = t * 6.93145752e-01f, v = (low - (t - high)) * 6.93147182e-01f + t * 1.42860654e-06f;
    const V(f32) r = u + v, lost = v - (r - u);
    V(f32) power = V(scale)(1 + (V(expm1_near_0)(r) + lost), n);

    const V(i32) whole = V(trunc)(y) == y;
    const V(i32) odd = whole & (b < 0x1p24f) & ((GO_TO(i32, y) & 1) != 0);
    const V(i32) zero = a == 0, infinite = a == __builtin_inff(), grows = (V(i32))((y > 0) ^ zero);
    power = V(select_f32)(zero | infinite, V(select_f32)(grows, C(__builtin_inff()), C(0)), power);
    power = (V(f32))((V(i32))power ^ (odd & (V(i32))x & (V(i32))C(-0.0f)));
    power = V(select_f32)((x < 0) & ~infinite & ~whole, C(__builtin_nanf("")), power);
    power = V(select_f32)(x != x, x, V(select_f32)(y != y, y, power));
    return V(select_f32)((V(i32))((y == 0) | (x == 1)), C(1), power);
}

GO_INLINE V(f32) V(fmod)(V(f32) x, V(f32) y) {
    V(f32) z = {0};
    for (int i = 0; i < GO_LANES; i++) z[i] = go_remainder(x[i], y[i]);
    return z;
}
