/* Bytes at a stride of 2, 3 or 4, such as one channel of pixels. Contiguous loads are shuffled; the last load ends with the
   last selected byte. */
GO_INLINE V(u8) V(pick_u8)(const void *p, const int stride) {
#if GO_LEVEL >= 2 && GO_LANES == 16
    const int last = 15 * stride - 15, loads = stride - 1; /* those before the last begin at 0, 16 ... */
    const uint8_t *bytes = p;
#define GO_IN(load, i) ((i)*stride / 16 == (load) ? (char)((i)*stride % 16) : (char)0x80)
#define GO_IN_LAST(i) ((i)*stride / 16 >= loads ? (char)((i)*stride - last) : (char)0x80)
#define GO_ALL(of) \
    of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7), of(8), of(9), of(10), of(11), of(12), of(13), of(14), of(15)
#define GO_IN_0(i) GO_IN(0, i)
#define GO_IN_1(i) GO_IN(1, i)
#define GO_IN_2(i) GO_IN(2, i)
#define GO_PART(at, of) _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(bytes + (at))), _mm_setr_epi8(GO_ALL(of)))
    __m128i found = _mm_or_si128(GO_PART(0, GO_IN_0), GO_PART(last, GO_IN_LAST));
    if (loads > 1) found = _mm_or_si128(found, GO_PART(16, GO_IN_1));
    if (loads > 2) found = _mm_or_si128(found, GO_PART(32, GO_IN_2));
#undef GO_PART
#undef GO_IN_2
#undef GO_IN_1
#undef GO_IN_0
#undef GO_ALL
#undef GO_IN_LAST
#undef GO_IN
    return (V(u8))found;
#else
    return V(gather_u8)(p, stride);
#endif
}
