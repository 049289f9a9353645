/* Conversions between widths of integers, on x86-64 by intrinsics: gcc 12 turns __builtin_convertvector after a load
   into loads of single elements. */
#define GO_TO(to, x) __builtin_convertvector(x, V(to))
#define GO_RESIZE(from, to, name, value) \
    GO_INLINE V(to) V(name)(V(from) x) { return (V(to))(value); }
#if GO_LEVEL == 4 && GO_LANES == 16
GO_RESIZE(i8, i32, wide_i8, _mm512_cvtepi8_epi32((__m128i)x))
GO_RESIZE(u8, i32, wide_u8, _mm512_cvtepu8_epi32((__m128i)x))
GO_RESIZE(u16, u32, wide_u16, _mm512_cvtepu16_epi32((__m256i)x))
GO_RESIZE(i32, i8, narrow_i8, _mm512_cvtepi32_epi8((__m512i)x))
GO_RESIZE(u32, u16, narrow_u16, _mm512_cvtepi32_epi16((__m512i)x))
#elif GO_LEVEL >= 3 && GO_LANES == 8
#define GO_LOW(x) _mm_cvtsi64_si128((long long)(x))
GO_INLINE __m128i V(halved)(V(i32) x) { /* the low 16 bits of each */
    const __m256i y = _mm256_and_si256((__m256i)x, _mm256_set1_epi32(0xffff));
    return _mm_packus_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
}
GO_INLINE __m128i V(quartered)(V(i32) x) { /* the low 8 bits of each, twice */
    const __m128i y = V(halved)(x & 0xff);
    return _mm_packus_epi16(y, y);
}
GO_RESIZE(i8, i32, wide_i8, _mm256_cvtepi8_epi32(GO_LOW(x)))
GO_RESIZE(u8, i32, wide_u8, _mm256_cvtepu8_epi32(GO_LOW(x)))
GO_RESIZE(u16, u32, wide_u16, _mm256_cvtepu16_epi32((__m128i)x))
GO_RESIZE(i32, i8, narrow_i8, _mm_cvtsi128_si64(V(quartered)(x)))
GO_RESIZE(u32, u16, narrow_u16, V(halved)((V(i32))x))
#undef GO_LOW
#elif GO_LEVEL >= 2 && GO_LANES == 4
GO_RESIZE(i8, i32, wide_i8, _mm_cvtepi8_epi32(_mm_cvtsi32_si128((int)x)))
GO_RESIZE(u8, i32, wide_u8, _mm_cvtepu8_epi32(_mm_cvtsi32_si128((int)x)))
GO_RESIZE(u16, u32, wide_u16, _mm_cvtepu16_epi32(_mm_cvtsi64_si128((long long)x)))
GO_RESIZE(i32, i8, narrow_i8, _mm_cvtsi128_si32(_mm_shuffle_epi8((__m128i)x, _mm_set1_epi32(0x0c080400))))
GO_RESIZE(u32, u16, narrow_u16, _mm_cvtsi128_si64(_mm_shuffle_epi8((__m128i)x, _mm_set1_epi64x(0x0d0c090805040100))))
#else
GO_RESIZE(i8, i32, wide_i8, GO_TO(i32, x))
GO_RESIZE(u8, i32, wide_u8, GO_TO(i32, x))
GO_RESIZE(u16, u32, wide_u16, GO_TO(u32, x))
GO_RESIZE(i32, i8, narrow_i8, GO_TO(i8, x))
GO_RESIZE(u32, u16, narrow_u16, GO_TO(u16, x))
#endif
#if GO_LEVEL == 4 && GO_LANES == 8
GO_RESIZE(i32, i64, wide_i32, _mm512_cvtepi32_epi64((__m256i)x))
#elif GO_LEVEL >= 3 && GO_LANES == 4
GO_RESIZE(i32, i64, wide_i32, _mm256_cvtepi32_epi64((__m128i)x))
#else
GO_RESIZE(i32, i64, wide_i32, GO_TO(i64, x))
#endif
#undef GO_RESIZE
