/* Half precision: f16 and bf16 in memory, single precision in registers, rounded to the nearest, ties to even. */
GO_INLINE V(f32) V(from_bf16)(V(u16) x) { return (V(f32))(V(wide_u16)(x) << 16); }

GO_INLINE V(u16) V(to_bf16)(V(f32) x) {
    const V(u32) bits = (V(u32))x;
    const V(u32) rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return V(narrow_u16)(V(select_u32)((V(i32))(x != x), bits | 0x400000, rounded) >> 16);
}

#if GO_LEVEL >= 3 && GO_LANES == 16
GO_INLINE V(f32) V(from_f16)(V(u16) x) { return (V(f32))_mm512_cvtph_ps((__m256i)x); }
GO_INLINE V(u16) V(to_f16)(V(f32) x) { return (V(u16))_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT); }
#elif GO_LEVEL >= 3 && GO_LANES == 8
GO_INLINE V(f32) V(from_f16)(V(u16) x) { return (V(f32))_mm256_cvtph_ps((__m128i)x); }
GO_INLINE V(u16) V(to_f16)(V(f32) x) { return (V(u16))_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT); }
#else
GO_INLINE V(f32) V(from_f16)(V(u16) x) {
    const V(u32) wide = V(wide_u16)(x), sign = (wide & 0x8000) << 16, shifted = (wide & 0x7fff) << 13;
    const V(i32) special = (V(i32))(shifted >= 0x0f800000); /* infinite or NaN: the exponent is 31 */
    const V(u32) bits = shifted + V(select_u32)(special, V(splat_u32)(0x70000000), V(splat_u32)(0x38000000));
    /* Numbers below 2^-14 have no leading 1: add it as a bit, and subtract it as a number. */
    const V(f32) small = (V(f32))(shifted + 0x38800000) - 0x1p-14f;
    return (V(f32))(V(select_u32)((V(i32))(shifted < 0x00800000), (V(u32))small, bits) | sign);
}

GO_INLINE V(u16) V(to_f16)(V(f32) x) {
    const V(u32) bits = (V(u32))x, sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    const V(u32) rounded = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    /* Adding 0.5 makes the last bit of the sum worth 2^-24, as that of a small half is. */
    const V(u32) small = (V(u32))((V(f32))magnitude + 0.5f) - 0x3f000000;
    V(u32) half = V(select_u32)((V(i32))(magnitude < 0x38800000), small, rounded);
    half = V(select_u32)((V(i32))(magnitude >= 0x477ff000), V(splat_u32)(0x7c00), half);
    half = V(select_u32)((V(i32))(magnitude > 0x7f800000), 0x7e00 | ((magnitude >> 13) & 0x3ff), half);
    return V(narrow_u16)(half | sign);
}
#endif

#define GO_HALF(name) \
    GO_INLINE V(f32) V(load_##name)(const void *p) { return V(from_##name)(V(load_u16)(p)); } \
    GO_INLINE V(f32) V(load_part_##name)(const void *p, int m) { return V(from_##name)(V(load_part_u16)(p, m)); } \
    GO_INLINE V(f32) V(load_one_##name)(const void *p) { return V(from_##name)(V(load_one_u16)(p)); } \
    GO_INLINE V(f32) V(gather_##name)(const void *p, int64_t stride) { \
        return V(from_##name)(V(gather_u16)(p, stride)); \
    } \
    GO_INLINE V(f32) V(gather_part_##name)(const void *p, int64_t stride, int m) { \
        return V(from_##name)(V(gather_part_u16)(p, stride, m)); \
    } \
    GO_INLINE void V(store_##name)(void *p, V(f32) x) { V(store_u16)(p, V(to_##name)(x)); } \
    GO_INLINE void V(stream_##name)(void *p, V(f32) x, int far) { V(stream_u16)(p, V(to_##name)(x), far); } \
    GO_INLINE void V(store_part_##name)(void *p, V(f32) x, int m) { V(store_part_u16)(p, V(to_##name)(x), m); } \
    GO_INLINE void V(scatter_##name)(void *p, int64_t stride, V(f32) x) { \
        V(scatter_u16)(p, stride, V(to_##name)(x)); \
    } \
    GO_INLINE void V(scatter_part_##name)(void *p, int64_t stride, V(f32) x, int m) { \
        V(scatter_part_u16)(p, stride, V(to_##name)(x), m); \
    } \
    GO_INLINE V(f32) V(round_##name)(V(f32) x) { return V(from_##name)(V(to_##name)(x)); }
GO_HALF(f16)
GO_HALF(bf16)
#undef GO_HALF
