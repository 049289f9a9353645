/* Functions of single elements. */

/* x^n of integers, which wraps around; fractions are truncated. */
__attribute__((unused)) static int64_t go_power(int64_t x, int64_t n) {
    if (n < 0) return x == 1 || x == -1 ? (n & 1 ? x : 1) : 0;
    uint64_t y = 1, factor = (uint64_t)x;
    for (; n; n >>= 1, factor *= factor)
        if (n & 1) y *= factor;
    return (int64_t)y;
}

/* The remainder of x / y rounded towards zero: exact, as fmodf is. */
__attribute__((unused)) static float go_remainder(float x, float y) {
    uint32_t a, b;
    memcpy(&a, &x, 4);
    memcpy(&b, &y, 4);
    const uint32_t sign = a & 0x80000000;
    a &= 0x7fffffff;
    b &= 0x7fffffff;
    if (!b || a >= 0x7f800000 || b > 0x7f800000) return x != x ? x : y != y ? y : __builtin_nanf("");
    if (a < b) return x;
    int32_t up = (int32_t)(a >> 23), down = (int32_t)(b >> 23);
    uint64_t rest = up ? (a & 0x7fffff) | 0x800000 : a;
    const uint64_t by = down ? (b & 0x7fffff) | 0x800000 : b;
    up += !up;
    down += !down;
    rest %= by;
    while (up > down) {
        const int32_t step = up - down < 40 ? up - down : 40;
        rest = (rest << step) % by;
        up -= step;
    }
    /* rest 2^(down - 150), and rest < 2^24: exact in double precision, and in the end */
    union {
        uint64_t bits;
        double number;
    } scale = {(uint64_t)(down - 150 + 1023) << 52};
    const float result = (float)((double)rest * scale.number);
    return sign ? -result : result;
}

/* r with x = r + q pi / 2 up to multiples of 2 pi, |r| <= pi / 4; returns q. x is not small, infinite or NaN.
   x is an integer times a power of two: it is multiplied with those 96 bits of 2 / pi that matter (Payne, Hanek). */
__attribute__((unused)) static int32_t go_split_large_angle(float x, float *r) {
    static const uint32_t two_over_pi[] = {0,          0xa2f9836e, 0x4e441529, 0xfc2757d1,
                                           0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab};
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const int32_t exponent = (int32_t)((bits >> 23) & 255) - 150;
    if (exponent == 105) {
        *r = __builtin_nanf("");
        return 0;
    }
    /* The bits of 2 / pi from where their products are worth less than 4: those before give multiples of 4. */
    const int32_t skip = exponent - 2 + 32, word = skip / 32, shift = skip % 32;
    uint64_t part[3];
    for (int i = 0; i < 3; i++) {
        const uint64_t pair = (uint64_t)two_over_pi[word + i] << 32 | two_over_pi[word + i + 1];
        part[i] = (pair << shift) >> 32;
    }
    const uint64_t factor = (bits & 0x7fffff) | 0x800000;
    /* The product modulo 4, in units of 2^-62 */
    const uint64_t product = (factor * part[0] << 32) + factor * part[1] + (factor * part[2] >> 32);
    const uint64_t q = (product + (1ull << 61)) >> 62;
    const double turn = (double)(int64_t)(product - (q << 62)) * 0x1.921fb54442d18p-62;
    *r = (float)(bits >> 31 ? -turn : turn);
    return bits >> 31 ? -(int32_t)(q & 3) : (int32_t)(q & 3);
}

/* The same of n angles of any size. */
__attribute__((unused, noinline, cold)) static void go_split_angles(const float *x, float *r, int32_t *turns, int n) {
    for (int i = 0; i < n; i++) {
        if (!(__builtin_fabsf(x[i]) < 0x1p20f)) {
            turns[i] = go_split_large_angle(x[i], &r[i]);
            continue;
        }
        /* The first part of pi / 2 has 33 bits: its multiples up to 2^20 are exact. */
        const double wide = x[i], q = wide * 0x1.45f306dc9c883p-1 + 0x1.8p52 - 0x1.8p52;
        r[i] = (float)(wide - q * 0x1.921fb544p0 - q * 0x1.0b4611a626331p-34);
        turns[i] = (int32_t)q;
    }
}
