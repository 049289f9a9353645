/* Conversions between types of numbers. Small integers go by way of int32, for which machines have instructions. */
#define GO_CONVERT(from, to, value) \
    GO_INLINE V(to) V(from##_to_##to)(V(from) x) { return value; }
GO_CONVERT(f32, i32, GO_TO(i32, x))
GO_CONVERT(f32, i64, GO_TO(i64, x))
GO_CONVERT(f32, i8, V(narrow_i8)(GO_TO(i32, x)))
GO_CONVERT(f32, u8, (V(u8))V(narrow_i8)(GO_TO(i32, x)))
GO_CONVERT(i32, f32, GO_TO(f32, x))
GO_CONVERT(i32, i64, V(wide_i32)(x))
GO_CONVERT(i32, i8, V(narrow_i8)(x))
GO_CONVERT(i32, u8, (V(u8))V(narrow_i8)(x))
GO_CONVERT(i64, f32, GO_TO(f32, x))
GO_CONVERT(i64, i32, GO_TO(i32, x))
GO_CONVERT(i64, i8, V(narrow_i8)(GO_TO(i32, x)))
GO_CONVERT(i64, u8, (V(u8))V(narrow_i8)(GO_TO(i32, x)))
GO_CONVERT(i8, f32, GO_TO(f32, V(wide_i8)(x)))
GO_CONVERT(i8, i32, V(wide_i8)(x))
GO_CONVERT(i8, i64, V(wide_i32)(V(wide_i8)(x)))
GO_CONVERT(i8, u8, (V(u8))x)
GO_CONVERT(u8, f32, GO_TO(f32, V(wide_u8)(x)))
GO_CONVERT(u8, i32, V(wide_u8)(x))
GO_CONVERT(u8, i64, V(wide_i32)(V(wide_u8)(x)))
GO_CONVERT(u8, i8, (V(i8))x)
#undef GO_CONVERT

/* bool: bytes in memory, a mask of bytes in registers. */
#define GO_YES(x) (V(i8))((x) != 0)
GO_INLINE V(i8) V(load_bool)(const void *p) { return GO_YES(V(load_u8)(p)); }
GO_INLINE V(i8) V(load_part_bool)(const void *p, int m) { return GO_YES(V(load_part_u8)(p, m)); }
GO_INLINE V(i8) V(load_one_bool)(const void *p) { return GO_YES(V(load_one_u8)(p)); }
GO_INLINE V(i8) V(gather_bool)(const void *p, int64_t stride) { return GO_YES(V(gather_u8)(p, stride)); }
GO_INLINE V(i8) V(gather_part_bool)(const void *p, int64_t stride, int m) {
    return GO_YES(V(gather_part_u8)(p, stride, m));
}
GO_INLINE void V(store_bool)(void *p, V(i8) x) { V(store_i8)(p, x & 1); }
GO_INLINE void V(stream_bool)(void *p, V(i8) x, int far) { V(stream_i8)(p, x & 1, far); }
GO_INLINE void V(store_part_bool)(void *p, V(i8) x, int m) { V(store_part_i8)(p, x & 1, m); }
GO_INLINE void V(scatter_bool)(void *p, int64_t stride, V(i8) x) { V(scatter_i8)(p, stride, x & 1); }
GO_INLINE void V(scatter_part_bool)(void *p, int64_t stride, V(i8) x, int m) {
    V(scatter_part_i8)(p, stride, x & 1, m);
}
