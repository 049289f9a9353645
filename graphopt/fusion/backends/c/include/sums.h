/* All lanes of a vector taken together, in a tree. */
#ifdef __clang__
#define GO_FOLD(name, mask, op, value) \
    GO_INLINE V(name) V(op##_across_##name)(V(name) x) { \
        for (int step = GO_LANES / 2; step; step /= 2) { \
            V(name) a = x, b = a; \
            for (int i = 0; i < GO_LANES; i++) b[i] = a[i ^ step]; \
            x = value; \
        } \
        return x; \
    }
#else
#define GO_FOLD(name, mask, op, value) \
    GO_INLINE V(name) V(op##_across_##name)(V(name) x) { \
        V(mask) lane = {0}; \
        for (int i = 0; i < GO_LANES; i++) lane[i] = (__typeof__(lane[0]))i; \
        for (int step = GO_LANES / 2; step; step /= 2) { \
            const V(name) a = x, b = __builtin_shuffle(x, lane ^ (__typeof__(lane[0]))step); \
            x = value; \
        } \
        return x; \
    }
#endif
#define GO_FOLDS(name, mask) \
    GO_FOLD(name, mask, sum, a + b) \
    GO_FOLD(name, mask, prod, a * b) \
    GO_FOLD(name, mask, min, V(min_##name)(a, b)) \
    GO_FOLD(name, mask, max, V(max_##name)(a, b))
GO_FOLDS(i8, i8)
GO_FOLDS(u8, i8)
GO_FOLDS(i32, i32)
GO_FOLDS(i64, i64)
#if !GO_WHOLE
GO_FOLDS(f32, i32)
#endif
#undef GO_FOLD
#undef GO_FOLDS
