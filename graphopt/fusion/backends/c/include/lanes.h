/* Vectors of GO_LANES elements, whose names end in GO_SET: their types, how they are read, written and converted.
   A file contains this text once for each number of lanes in use. Tensors need not be aligned, and no memory outside
   of them is accessed: functions with the suffix _part read or write the first m elements alone. The result of a
   comparison that is true has all bits set, in an integer of the width of the operands. */

/* gcc 12 reads elements that lie a known stride apart as vectors, and shuffles: up to ten times as slow as reading them
   one by one, which it does where it does not know the stride. */
#define GO_HIDE(number) __asm__("" : "+r"(number))
#define V(name) GO_JOIN(name, GO_SET)

#define GO_VECTOR(name, type) \
    typedef type V(name) __attribute__((vector_size(GO_LANES * sizeof(type)))); \
    typedef V(name) V(name##_at) __attribute__((aligned(1), may_alias)); \
    typedef type V(name##_one) __attribute__((aligned(1), may_alias)); \
    GO_INLINE V(name) V(splat_##name)(type x) { return x - (V(name)){0}; } \
    GO_INLINE V(name) V(load_##name)(const void *p) { return *(const V(name##_at) *)p; } \
    GO_INLINE void V(store_##name)(void *p, V(name) x) { *(V(name##_at) *)p = x; } \
    GO_INLINE void V(stream_##name)(void *p, V(name) x, int far) { \
        if (far) go_stream(p, &x, sizeof x); \
        else V(store_##name)(p, x); \
    } \
    GO_INLINE V(name) V(load_part_##name)(const void *p, int m) { \
        V(name) x = {0}; \
        go_load_part(&x, p, sizeof x, sizeof(type), m); \
        return x; \
    } \
    GO_INLINE void V(store_part_##name)(void *p, V(name) x, int m) { go_store_part(p, &x, sizeof x, sizeof(type), m); } \
    GO_INLINE V(name) V(load_one_##name)(const void *p) { return V(splat_##name)(*(const V(name##_one) *)p); } \
    GO_INLINE V(name) V(gather_##name)(const void *p, int64_t stride) { \
        V(name) x = {0}; \
        if (sizeof(type) > 1) GO_HIDE(stride); \
        for (int i = 0; i < GO_LANES; i++) x[i] = ((const V(name##_one) *)p)[i * stride]; \
        return x; \
    } \
    GO_INLINE V(name) V(gather_part_##name)(const void *p, int64_t stride, int m) { \
        type x[GO_LANES] = {0}; \
        for (int i = 0; i < m; i++) x[i] = ((const V(name##_one) *)p)[i * stride]; \
        return V(load_##name)(x); \
    } \
    GO_INLINE void V(scatter_part_##name)(void *p, int64_t stride, V(name) x, int m) { \
        type of[GO_LANES]; \
        V(store_##name)(of, x); \
        for (int i = 0; i < m; i++) ((V(name##_one) *)p)[i * stride] = of[i]; \
    } \
    GO_INLINE void V(scatter_##name)(void *p, int64_t stride, V(name) x) { \
        for (int i = 0; i < GO_LANES; i++) ((V(name##_one) *)p)[i * stride] = x[i]; \
    }
GO_VECTOR(f32, float)
GO_VECTOR(i8, int8_t)
GO_VECTOR(u8, uint8_t)
GO_VECTOR(u16, uint16_t)
GO_VECTOR(i32, int32_t)
GO_VECTOR(u32, uint32_t)
GO_VECTOR(i64, int64_t)
#undef GO_VECTOR
#undef GO_HIDE

/* yes ? a : b */
#define GO_SELECT(name, mask) \
    GO_INLINE V(name) V(select_##name)(V(mask) yes, V(name) a, V(name) b) { \
        return (V(name))((yes & (V(mask))a) | (~yes & (V(mask))b)); \
    }
GO_SELECT(f32, i32)
GO_SELECT(i8, i8)
GO_SELECT(u8, i8)
GO_SELECT(i32, i32)
GO_SELECT(u32, i32)
GO_SELECT(i64, i64)
#undef GO_SELECT

/* The first m lanes: yes for those. */
#define GO_FIRST(name, type) \
    GO_INLINE V(name) V(first_##name)(int m) { \
        V(name) lane = {0}; \
        for (int i = 0; i < GO_LANES; i++) lane[i] = (type)i; \
        return lane < (type)m; \
    }
#if GO_LANES < 128
GO_FIRST(i8, int8_t)
#endif
GO_FIRST(i32, int32_t)
GO_FIRST(i64, int64_t)
#undef GO_FIRST
