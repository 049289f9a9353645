/* Arithmetic that C has no operator for on vectors, or one that traps. */
#define GO_PAIR(name) \
    GO_INLINE V(name) V(min_##name)(V(name) a, V(name) b) { return V(select_##name)(a < b, a, b); } \
    GO_INLINE V(name) V(max_##name)(V(name) a, V(name) b) { return V(select_##name)(a > b, a, b); }
GO_PAIR(i8)
GO_PAIR(u8)
GO_PAIR(i32)
GO_PAIR(i64)
#undef GO_PAIR

/* Lane by lane. Lanes beyond a tensor's end may divide by zero: they must not trap. */
#define GO_LANE_BY_LANE(name, type, op, value) \
    GO_INLINE V(name) V(op##_##name)(V(name) a, V(name) b) { \
        V(name) c = {0}; \
        for (int i = 0; i < GO_LANES; i++) { \
            const type x = a[i], y = b[i]; \
            c[i] = (type)(value); \
        } \
        return c; \
    }
#define GO_SIGNED(name, type) \
    GO_LANE_BY_LANE(name, type, div, y == 0 ? 0 : y == -1 ? 0 - x : x / y) \
    GO_LANE_BY_LANE(name, type, mod, y == 0 || y == -1 ? 0 : x % y) \
    GO_LANE_BY_LANE(name, type, pow, go_power(x, y)) \
    GO_INLINE V(name) V(abs_##name)(V(name) x) { return V(select_##name)(x < 0, -x, x); }
GO_SIGNED(i8, int8_t)
GO_SIGNED(i32, int32_t)
GO_SIGNED(i64, int64_t)
GO_LANE_BY_LANE(u8, uint8_t, div, y == 0 ? 0 : x / y)
GO_LANE_BY_LANE(u8, uint8_t, mod, y == 0 ? 0 : x % y)
GO_LANE_BY_LANE(u8, uint8_t, pow, go_power(x, y))
#undef GO_SIGNED
#undef GO_LANE_BY_LANE
GO_INLINE V(u8) V(abs_u8)(V(u8) x) { return x; }

/* Shifts by as much as the width, or more, give 0. */
#define GO_SHIFT(name, bits, mask) \
    GO_INLINE V(name) V(shl_##name)(V(name) a, V(name) b) { \
        return V(select_##name)((V(mask))((b >= 0) & (b < bits)), a << (b & (bits - 1)), (V(name)){0}); \
    } \
    GO_INLINE V(name) V(shr_##name)(V(name) a, V(name) b) { \
        return V(select_##name)((V(mask))((b >= 0) & (b < bits)), a >> (b & (bits - 1)), (V(name)){0}); \
    }
GO_SHIFT(i8, 8, i8)
GO_SHIFT(u8, 8, i8)
GO_SHIFT(i32, 32, i32)
GO_SHIFT(i64, 64, i64)
#undef GO_SHIFT
