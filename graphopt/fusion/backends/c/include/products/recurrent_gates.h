/* Gates of LSTM, GRU and RNN for some units of a row, as whole vectors (`go_cell_kind` of recurrences.h). */

/* The input of a gate within its bounds. With a bias, onnxruntime turns NaN into the upper bound. */
GO_INLINE f32_w go_gate_clipped(f32_w x, float clip, const int biased) {
    const f32_w bounded = more_w(less_w(x, splat_f32_w(clip)), splat_f32_w(-clip));
    return biased ? bounded : select_f32_w(x == x, bounded, x);
}

GO_INLINE f32_w go_gate_load(const float *from, int64_t left) {
    return left >= LANES_w ? load_f32_w(from) : load_part_f32_w(from, (int)left);
}

GO_INLINE void go_gate_store(const go_cell *cell, int64_t j, f32_w h) {
    store_f32_w(cell->next + j, h);
    if (!cell->y) return;
    const int64_t left = cell->hidden - j;
    if (left >= LANES_w) store_f32_w(cell->y + j, h);
    else store_part_f32_w(cell->y + j, h, (int)left);
}

/* Activations of gates: quotients, so that products of them have one division. With absolute errors of 2e-7, like those of
   onnxruntime. */

/* 1 / sigmoid(x) = 1 + 2^(-x / ln(2)) for |x| <= 87 */
GO_INLINE f32_w go_gate_logistic_divisor(f32_w x) {
    const f32_w scale = splat_f32_w(-1.44269504f), biased = fma_w(x, scale, splat_f32_w(GO_BIASED));
    const f32_w r = fma_w(x, scale, GO_BIASED - biased), one = splat_f32_w(1);
    return fma_w(fma_w(exp2m1_over_r_w(r), r, one), power_of_biased_w(biased), one);
}

/* Dividend and divisor of tanh(x) for |x| <= 9: a rational minimax approximation, odd in x */
GO_INLINE f32_w go_gate_tanh(f32_w x, f32_w *divisor) {
    const f32_w z = x * x;
    f32_w p = fma_w(z, splat_f32_w(-2.76076847742355e-16f), splat_f32_w(2.00018790482477e-13f));
    p = fma_w(z, p, splat_f32_w(-8.60467152213735e-11f));
    p = fma_w(z, p, splat_f32_w(5.12229709037114e-08f));
    p = fma_w(z, p, splat_f32_w(1.48572235717979e-05f));
    p = fma_w(z, p, splat_f32_w(6.37261928875436e-04f));
    p = fma_w(z, p, splat_f32_w(4.89352455891786e-03f));
    f32_w q = fma_w(z, splat_f32_w(1.19825839466702e-06f), splat_f32_w(1.18534705686654e-04f));
    q = fma_w(z, q, splat_f32_w(2.26843463243900e-03f));
    *divisor = fma_w(z, q, splat_f32_w(4.89352518554385e-03f));
    return x * p;
}

/* x within a bound; NaN remains. */
GO_INLINE f32_w go_gate_bounded(f32_w x, float bound) {
    return more_w(splat_f32_w(-bound), less_w(splat_f32_w(bound), x));
}

/* sigmoid(x) */
GO_INLINE f32_w go_gate_logistic(f32_w x) { return 1 / go_gate_logistic_divisor(go_gate_bounded(x, 87)); }

/* sigmoid(x) tanh(y) for |x| <= 87, |y| <= 9 */
GO_INLINE f32_w go_gate_logistic_tanh(f32_w x, f32_w y) {
    f32_w divisor;
    const f32_w dividend = go_gate_tanh(y, &divisor);
    return dividend / (go_gate_logistic_divisor(x) * divisor);
}

/* Gates i, o, f, c */
GO_INLINE void go_lstm_gates(const go_cell *cell, int64_t first, int64_t stop, f32_w (*f)(f32_w), f32_w (*g)(f32_w),
                             f32_w (*act)(f32_w), float clip, const int biased, const int coupled) {
    const int common = f == go_gate_logistic && g == tanh_w && act == tanh_w && !coupled;
    /* Results for larger inputs are those for the bounds of the functions. */
    const float bound = common && clip > 87 ? 87 : clip, bound_of_next = common && clip > 9 ? 9 : clip;
    const int64_t hidden = cell->hidden;
    for (int64_t j = first; j < stop; j += LANES_w) {
        const float *const sums = cell->sums + 4 * j, *const peephole = cell->peephole;
        f32_w i = load_f32_w(sums), o = load_f32_w(sums + LANES_w), forget = load_f32_w(sums + 2 * LANES_w);
        f32_w c = load_f32_w(cell->c + j);
        const f32_w next = go_gate_clipped(load_f32_w(sums + 3 * LANES_w), bound_of_next, biased);
        if (peephole) {
            i += c * go_gate_load(peephole + j, hidden - j);
            forget += c * go_gate_load(peephole + 2 * hidden + j, hidden - j);
        }
        i = go_gate_clipped(i, bound, biased);
        if (common) {
            forget = go_gate_logistic_divisor(go_gate_clipped(forget, bound, biased));
            c = c / forget + go_gate_logistic_tanh(i, next);
        } else {
            i = f(i);
            c = c * (coupled ? 1 - i : f(go_gate_clipped(forget, bound, biased))) + i * g(next);
        }
        if (peephole) o += c * go_gate_load(peephole + hidden + j, hidden - j);
        o = go_gate_clipped(o, bound, biased);
        store_f32_w(cell->c + j, c);
        go_gate_store(cell, j, common ? go_gate_logistic_tanh(o, go_gate_bounded(c, 9)) : f(o) * act(c));
    }
}

/* Gates z, r of the first product and h of the second: the reset state, for the product of the hidden gate */
GO_INLINE void go_gru_reset(const go_cell *cell, int64_t first, int64_t stop, f32_w (*f)(f32_w), float clip,
                            const int biased) {
    for (int64_t j = first; j < stop; j += LANES_w) {
        const f32_w r = f(go_gate_clipped(load_f32_w(cell->sums + 2 * j + LANES_w), clip, biased));
        store_f32_w(cell->reset + j, r * load_f32_w(cell->h + j));
    }
}

/* The state from the hidden gate; with `linear`, also reset */
GO_INLINE void go_gru_update(const go_cell *cell, int64_t first, int64_t stop, f32_w (*f)(f32_w), f32_w (*g)(f32_w),
                             float clip, const int biased, const int linear) {
    for (int64_t j = first; j < stop; j += LANES_w) {
        const float *const sums = cell->sums + 2 * j;
        const f32_w z = f(go_gate_clipped(load_f32_w(sums), clip, biased));
        f32_w next = load_f32_w(cell->sums + 2 * cell->whole + j);
        if (linear)
            next += f(go_gate_clipped(load_f32_w(sums + LANES_w), clip, biased)) * load_f32_w(cell->linear + j);
        next = g(go_gate_clipped(next, clip, biased));
        go_gate_store(cell, j, (1 - z) * next + z * load_f32_w(cell->h + j));
    }
}

GO_INLINE void go_rnn_gate(const go_cell *cell, int64_t first, int64_t stop, f32_w (*f)(f32_w), float clip) {
    for (int64_t j = first; j < stop; j += LANES_w)
        go_gate_store(cell, j, f(go_gate_clipped(load_f32_w(cell->sums + j), clip, 0)));
}
