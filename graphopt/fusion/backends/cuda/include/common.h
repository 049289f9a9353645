/* Types and functions of all dialects. */
#define GO_INFINITY go_as_f32(0x7f800000u)
#define GO_NAN go_as_f32(0x7fc00000u)

/* Adjacent elements, accessed by as few instructions as their alignment allows: at most 16 bytes each. */
#define GO_WIDE(type, count, bytes) \
    typedef struct GO_ALIGNED(bytes) { \
        type at[count]; \
    } type##x##count;
GO_WIDE(i8, 2, 2)
GO_WIDE(i8, 4, 4)
GO_WIDE(i8, 8, 8)
GO_WIDE(i8, 16, 16)
GO_WIDE(u8, 2, 2)
GO_WIDE(u8, 4, 4)
GO_WIDE(u8, 8, 8)
GO_WIDE(u8, 16, 16)
GO_WIDE(u16, 2, 4)
GO_WIDE(u16, 4, 8)
GO_WIDE(u16, 8, 16)
GO_WIDE(f32, 2, 8)
GO_WIDE(f32, 4, 16)
GO_WIDE(i32, 2, 8)
GO_WIDE(i32, 4, 16)
GO_WIDE(i64, 2, 16)

/* The functions of C, unless the dialect has others. */
#ifndef go_sqrt
#define go_sqrt sqrtf
#define go_exp expf
#define go_log logf
#define go_tanh tanhf
#define go_erf erff
#define go_sin sinf
#define go_cos cosf
#define go_floor floorf
#define go_ceil ceilf
#define go_trunc truncf
#define go_round_even rintf
#define go_pow powf
#define go_fmod fmodf
#define go_abs_f32 fabsf
#endif

#ifdef GO_HALVES_BY_BITS
GO_FUNCTION f32 go_from_f16(u16 bits) {
    const u32 sign = (u32)(bits & 0x8000) << 16, shifted = (u32)(bits & 0x7fff) << 13;
    /* Subnormal numbers, below 2^-14, have no leading 1: set it as a bit, and subtract it in floating point. */
    if (shifted < 0x00800000u) return go_as_f32(go_as_u32(go_as_f32(shifted + 0x38800000u) - 0x1p-14f) | sign);
    return go_as_f32((shifted + (shifted >= 0x0f800000u ? 0x70000000u : 0x38000000u)) | sign);
}

GO_FUNCTION u16 go_to_f16(f32 x) {
    const u32 bits = go_as_u32(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    u32 result = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    /* Adding 0.5 makes the last bit of the sum worth 2^-24, like that of a small half. */
    if (magnitude < 0x38800000u) result = go_as_u32(go_as_f32(magnitude) + 0.5f) - 0x3f000000u;
    if (magnitude >= 0x477ff000u) result = 0x7c00u;
    if (magnitude > 0x7f800000u) result = 0x7e00u;
    return (u16)(result | sign);
}
#endif

GO_FUNCTION f32 go_from_bf16(u16 bits) { return go_as_f32((u32)bits << 16); }

GO_FUNCTION u16 go_to_bf16(f32 x) {
    const u32 bits = go_as_u32(x);
    if (x != x) return (u16)((bits | 0x400000u) >> 16);
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

GO_FUNCTION f32 go_round_f16(f32 x) { return go_from_f16(go_to_f16(x)); }
GO_FUNCTION f32 go_round_bf16(f32 x) { return go_from_bf16(go_to_bf16(x)); }

/* NaN if an operand is NaN; of two zeros, the second one. */
GO_FUNCTION f32 go_min_f32(f32 a, f32 b) { return a != a || a < b ? a : b; }
GO_FUNCTION f32 go_max_f32(f32 a, f32 b) { return a != a || a > b ? a : b; }

GO_FUNCTION f32 go_sigmoid(f32 x) {
    const f32 e = go_exp(-go_abs_f32(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* x^n, which wraps around; fractions are truncated. */
GO_FUNCTION i64 go_power(i64 x, i64 n) {
    if (n < 0) return x == 1 || x == -1 ? (n & 1 ? x : 1) : 0;
    u64 y = 1, factor = (u64)x;
    for (; n; n >>= 1, factor *= factor)
        if (n & 1) y *= factor;
    return (i64)y;
}

/* Integers wrap around. The result of a division by 0 is 0, and of a shift by a count out of range, too. */
#define GO_INTEGER(type) \
    GO_FUNCTION type go_min_##type(type a, type b) { return a < b ? a : b; } \
    GO_FUNCTION type go_max_##type(type a, type b) { return a > b ? a : b; } \
    GO_FUNCTION type go_pow_##type(type a, type b) { return (type)go_power(a, b); }
GO_INTEGER(i8)
GO_INTEGER(u8)
GO_INTEGER(i32)
GO_INTEGER(i64)
#define GO_SIGNED(type, wide, bits) \
    GO_FUNCTION type go_abs_##type(type a) { return a < 0 ? (type)((wide)0 - (wide)a) : a; } \
    GO_FUNCTION type go_div_##type(type a, type b) { \
        return b == 0 ? (type)0 : b == -1 ? (type)((wide)0 - (wide)a) : (type)(a / b); \
    } \
    GO_FUNCTION type go_mod_##type(type a, type b) { return b == 0 || b == -1 ? (type)0 : (type)(a % b); } \
    GO_FUNCTION type go_shl_##type(type a, type b) { \
        return b >= 0 && b < bits ? (type)((wide)a << (b & (bits - 1))) : (type)0; \
    } \
    GO_FUNCTION type go_shr_##type(type a, type b) { \
        return b >= 0 && b < bits ? (type)(a >> (b & (bits - 1))) : (type)0; \
    }
GO_SIGNED(i8, u32, 8)
GO_SIGNED(i32, u32, 32)
GO_SIGNED(i64, u64, 64)
GO_FUNCTION u8 go_abs_u8(u8 a) { return a; }
GO_FUNCTION u8 go_div_u8(u8 a, u8 b) { return b == 0 ? (u8)0 : (u8)(a / b); }
GO_FUNCTION u8 go_mod_u8(u8 a, u8 b) { return b == 0 ? (u8)0 : (u8)(a % b); }
GO_FUNCTION u8 go_shl_u8(u8 a, u8 b) { return b < 8 ? (u8)(a << (b & 7)) : (u8)0; }
GO_FUNCTION u8 go_shr_u8(u8 a, u8 b) { return b < 8 ? (u8)(a >> (b & 7)) : (u8)0; }
