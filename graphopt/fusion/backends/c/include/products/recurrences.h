/* LSTM, GRU and RNN (ONNX, layout 0) in single precision, as onnxruntime computes them.

   A chunk of work is a direction of some rows of the batch, from the first step to the last. The products of inputs are
   computed for a block of steps at once, those of states step by step; both are added up in `sums`, [step][row][gate]
   [unit]. Gates are as long as whole vectors. Rows whose sequence has ended take no part. */

/* One row in one step. */
typedef struct {
    float *sums;           /* [gates][whole]: the inputs of the gates, with biases */
    float *linear;         /* [whole]: the recurrent part of GRU's hidden gate, if it is computed before the reset */
    float *h, *c, *reset;  /* [whole]: the states, and GRU's reset state */
    const float *peephole; /* [3][hidden] or NULL */
    float *y;              /* [hidden] or NULL */
    int64_t hidden, whole;
} go_cell;

/* The kind of a cell. */
typedef struct {
    int gates, first;                /* gates; how many of them the first product of a step computes */
    int linear;                      /* whether the second product has the state as its operand, not the reset state */
    int is_rnn;                      /* RNN: an omitted first state is no 0 */
    void (*before)(const go_cell *); /* after the first product, or after both if the second doesn't need it */
    void (*after)(const go_cell *);  /* after the second product, if it needs the reset state */
} go_cell_kind;

typedef struct {
    const float *x, *w, *r;                /* w and r packed */
    const float *b, *h0, *c0, *peepholes;  /* or NULL */
    const int32_t *lengths;                /* or NULL */
    float *y, *yh, *yc;                    /* or NULL */
    void (*finish)(void *data, int64_t at, int64_t count, const void *values); /* takes elements of Y if y is NULL */
    void *data;                            /* first argument of finish, or NULL: Y is no result */
    int64_t steps, batch, inputs, hidden;
    int directions, reverse;
    const go_cell_kind *kinds;             /* of each direction */
    int64_t rows, row_chunks;              /* set by go_run_recurrence: rows of a chunk, chunks of a direction */
    go_call *call;                         /* whose threads share the products of a chunk, or NULL */
    int failed;
} go_recurrence;

/* Rows of input products that are computed at once, so that the sums stay in the caches */
enum { GO_STEP_ROWS = 24 };

/* Weights [directions][gates][hidden][depth] in panels; the recurrent ones of GRU's hidden gate are apart. */
GO_INLINE size_t go_gates_bytes(const int64_t *dims, int64_t gates) {
    return (size_t)(dims[0] * gates * go_whole(dims[1] / gates) * dims[2]) * sizeof(float);
}

GO_INLINE void go_pack_gates(const float *from, const int64_t *dims, int64_t gates, int64_t first, float *to) {
    const int64_t hidden = dims[1] / gates, depth = dims[2], whole = go_whole(hidden), rest = gates - first;
    for (int64_t direction = 0; direction < dims[0]; direction++, from += dims[1] * depth) {
        go_pack_rows(from, first, hidden, depth, to);
        to += first * whole * depth;
        go_pack_rows(from + first * hidden * depth, rest, hidden, depth, to);
        to += rest * whole * depth;
    }
}

#define GO_PACKED_GATES(name, gates, first) \
    __attribute__((unused)) static size_t go_##name##_bytes(const int64_t *dims) { return go_gates_bytes(dims, gates); } \
    __attribute__((unused)) static void go_##name##_pack_w(const void *from, const int64_t *dims, void *to) { \
        go_pack_gates(from, dims, gates, gates, to); \
    } \
    __attribute__((unused)) static void go_##name##_pack_r(const void *from, const int64_t *dims, void *to) { \
        go_pack_gates(from, dims, gates, first, to); \
    }
GO_PACKED_GATES(lstm, 4, 4)
GO_PACKED_GATES(gru, 3, 2)
GO_PACKED_GATES(rnn, 1, 1)
#undef GO_PACKED_GATES

GO_INLINE int64_t go_length(const go_recurrence *run, int64_t row) {
    return run->lengths ? run->lengths[row] : run->steps;
}

/* The biases [gates][whole] of a direction, and the recurrent ones of the last gate, where the cell adds them apart */
GO_INLINE void go_add_biases(const go_recurrence *run, const go_cell_kind *kind, int64_t direction, float *sums,
                             float *apart) {
    const int64_t hidden = run->hidden, whole = go_whole(hidden);
    memset(sums, 0, (size_t)(kind->gates * whole) * sizeof(float));
    memset(apart, 0, (size_t)whole * sizeof(float));
    if (!run->b) return;
    const float *const input = run->b + direction * 2 * kind->gates * hidden, *const state = input + kind->gates * hidden;
    for (int64_t gate = 0; gate < kind->gates; gate++)
        for (int64_t j = 0; j < hidden; j++) {
            const int64_t from = gate * hidden + j;
            if (gate >= kind->first && kind->linear) {
                sums[gate * whole + j] = input[from];
                apart[j] = state[from];
            } else {
                sums[gate * whole + j] = input[from] + state[from];
            }
        }
}

/* The state of a chunk: its rows, from `start` on, and its memory. */
typedef struct {
    const go_recurrence *run;
    const go_cell_kind *kind;
    int64_t direction, start, rows, longest;
    int64_t whole, width;            /* of a gate and of all gates, in elements */
    int64_t block;                   /* steps whose inputs are computed at once */
    float *sums;                     /* [2][block][rows][width]: of this block of steps and the next */
    float *bias, *apart;             /* [width], [whole]: see go_add_biases */
    float *h, *c, *reset, *linear;   /* [rows][whole] */
    const float **input_a, **input_from, **a, **from;
    float **input_to, **to;          /* operands of the products: of inputs [block][rows], of a step [rows] */
} go_chunk;

GO_INLINE int64_t go_time(const go_chunk *at, int64_t row, int64_t step) {
    return at->run->reverse || at->direction == 1 ? go_length(at->run, at->start + row) - 1 - step : step;
}

/* The memory of a chunk; NULL if there is none. */
GO_INLINE void *go_allocate_chunk(go_chunk *at) {
    const int64_t inputs = at->block * at->rows, rows = at->rows;
    const double floats = (2. * inputs + 1) * at->width + (1 + 4. * rows) * at->whole;
    const double bytes = floats * sizeof(float) + 3. * (inputs + rows) * sizeof(void *) + 64;
    char *const own = bytes < 0x1p48 ? malloc((size_t)bytes) : NULL;
    if (!own) return NULL;
    at->sums = (float *)(((uintptr_t)own + 63) / 64 * 64);
    at->bias = at->sums + 2 * inputs * at->width;
    at->apart = at->bias + at->width;
    at->h = at->apart + at->whole;
    at->c = at->h + rows * at->whole;
    at->reset = at->c + rows * at->whole;
    at->linear = at->reset + rows * at->whole;
    at->input_a = (const float **)(at->linear + rows * at->whole);
    at->input_from = at->input_a + inputs;
    at->a = at->input_from + inputs;
    at->from = at->a + rows;
    at->input_to = (float **)(at->from + rows);
    at->to = at->input_to + inputs;
    return own;
}

GO_INLINE float *go_sums(const go_chunk *at, int64_t row, int64_t step) {
    return at->sums + (step % (2 * at->block) * at->rows + row) * at->width;
}

/* The product of the inputs of a block of steps */
GO_INLINE go_product go_inputs(const go_chunk *at, int64_t first) {
    const go_recurrence *const run = at->run;
    const float *const w = run->w + at->direction * at->width * run->inputs;
    go_product p = {w, run->inputs, at->width, at->input_a, at->input_from, at->input_to, 0, 0, 0};
    for (int64_t step = first; step < first + at->block && step < at->longest; step++)
        for (int64_t i = 0; i < at->rows; i++) {
            if (step >= go_length(run, at->start + i)) continue;
            at->input_a[p.rows] = run->x + (go_time(at, i, step) * run->batch + at->start + i) * run->inputs;
            at->input_from[p.rows] = at->bias;
            at->input_to[p.rows++] = go_sums(at, i, step);
        }
    return p;
}

/* The index in Y of a row at a time */
GO_INLINE int64_t go_place(const go_chunk *at, int64_t row, int64_t time) {
    const go_recurrence *const run = at->run;
    return ((time * run->directions + at->direction) * run->batch + at->start + row) * run->hidden;
}

GO_INLINE go_cell go_cell_of(const go_chunk *at, int64_t row, int64_t step) {
    const go_recurrence *const run = at->run;
    return (go_cell){
        .sums = go_sums(at, row, step),
        .linear = at->linear + row * at->whole,
        .h = at->h + row * at->whole,
        .c = at->c + row * at->whole,
        .reset = at->reset + row * at->whole,
        .peephole = run->peepholes ? run->peepholes + at->direction * 3 * run->hidden : NULL,
        .y = run->y ? run->y + go_place(at, row, go_time(at, row, step)) : NULL,
        .hidden = run->hidden,
        .whole = at->whole,
    };
}

/* A product of a step, with the rows of `at`; parts of `beside` are computed meanwhile. */
GO_INLINE void go_multiply(const go_chunk *at, const float *m, int64_t columns, int64_t rows, int64_t step,
                           go_product *beside) {
    const go_product p = {m, at->run->hidden, columns, at->a, at->from, at->to, rows, 0, 0};
    if (at->run->call) go_share_product(at->run->call, &p);
    else go_rows(m, p.depth, columns, step & 1, at->a, at->from, at->to, rows, beside);
}

/* One step of the rows that take part in it */
GO_INLINE void go_step_rows(const go_chunk *at, int64_t step, go_product *beside) {
    const go_recurrence *const run = at->run;
    const go_cell_kind *const kind = at->kind;
    const float *const r = run->r + at->direction * at->width * run->hidden;
    const int64_t columns = kind->first * at->whole, rest = at->width - columns;
    const int apart = rest && kind->linear, after = rest && !kind->linear;
    int64_t count = 0;
    for (int64_t i = 0; i < at->rows; i++) {
        if (step >= go_length(run, at->start + i)) continue;
        at->a[count] = at->h + i * at->whole;
        at->from[count] = at->to[count] = go_sums(at, i, step);
        count++;
    }
    if (step > 0 || run->h0 || !kind->is_rnn) /* infinite weights make NaN of 0 */
        go_multiply(at, r, columns, count, step, beside);
    if (apart) {
        for (int64_t k = 0; k < count; k++) {
            at->from[k] = at->apart;
            at->to[k] = at->linear + (at->a[k] - at->h);
        }
        go_multiply(at, r + columns * run->hidden, rest, count, step, beside);
    }
    count = 0;
    for (int64_t i = 0; i < at->rows; i++) {
        if (step >= go_length(run, at->start + i)) continue;
        const go_cell cell = go_cell_of(at, i, step);
        kind->before(&cell);
        at->a[count] = cell.reset;
        at->from[count] = at->to[count] = cell.sums + columns;
        count++;
    }
    if (after) go_multiply(at, r + columns * run->hidden, rest, count, step, beside);
    for (int64_t i = 0; i < at->rows && (after || run->data); i++) {
        if (step >= go_length(run, at->start + i)) continue;
        const go_cell cell = go_cell_of(at, i, step);
        if (after) kind->after(&cell);
        if (run->data) run->finish(run->data, go_place(at, i, go_time(at, i, step)), run->hidden, cell.h);
    }
}

/* Zeros of Y after the end of a sequence, and the last states; the row's memory is overwritten. */
GO_INLINE void go_end_row(const go_chunk *at, int64_t i) {
    const go_recurrence *const run = at->run;
    const int64_t length = go_length(run, at->start + i);
    const int64_t state = (at->direction * run->batch + at->start + i) * run->hidden;
    const size_t size = (size_t)run->hidden * sizeof(float);
    float *const h = at->h + i * at->whole, *const c = at->c + i * at->whole;
    if (!length) memset(h, 0, size), memset(c, 0, size);
    if (run->yh) memcpy(run->yh + state, h, size);
    if (run->yc) memcpy(run->yc + state, c, size);
    memset(h, 0, size);
    for (int64_t time = length; time < run->steps; time++) {
        if (run->y) memcpy(run->y + go_place(at, i, time), h, size);
        if (run->data) run->finish(run->data, go_place(at, i, time), run->hidden, h);
    }
}

GO_NOINLINE void go_recurrence_chunk(go_recurrence *run, int64_t chunk) {
    const int64_t start = chunk % run->row_chunks * run->rows, left = run->batch - start;
    go_chunk at = {.run = run, .direction = chunk / run->row_chunks, .start = start};
    at.rows = left < run->rows ? left : run->rows;
    at.kind = &run->kinds[at.direction];
    at.whole = go_whole(run->hidden);
    at.width = at.kind->gates * at.whole;
    for (int64_t i = 0; i < at.rows; i++)
        if (go_length(run, start + i) > at.longest) at.longest = go_length(run, start + i);
    at.block = GO_STEP_ROWS > at.rows ? GO_STEP_ROWS / at.rows : 1;
    if (at.rows == 1 && GO_BYTES == 64 && !run->call) at.block = GO_BESIDE;
    void *const own = go_allocate_chunk(&at);
    if (!own) {
        __atomic_store_n(&run->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    const size_t size = (size_t)run->hidden * sizeof(float);
    go_add_biases(run, at.kind, at.direction, at.bias, at.apart);
    memset(at.h, 0, (size_t)(2 * at.rows * at.whole) * sizeof(float));
    for (int64_t i = 0; i < at.rows; i++) {
        const int64_t state = (at.direction * run->batch + start + i) * run->hidden;
        if (run->h0) memcpy(at.h + i * at.whole, run->h0 + state, size);
        if (run->c0) memcpy(at.c + i * at.whole, run->c0 + state, size);
    }

    go_product inputs = go_inputs(&at, 0);
    for (int64_t first = 0; first < at.longest; first += at.block) {
        if (run->call) go_share_product(run->call, &inputs);
        else go_finish_product(&inputs);
        inputs = go_inputs(&at, first + at.block);
        for (int64_t step = first; step < first + at.block && step < at.longest; step++)
            go_step_rows(&at, step, &inputs);
    }

    for (int64_t i = 0; i < at.rows; i++) go_end_row(&at, i);
    free(own);
}

/* Runs all chunks, whose results do not depend on their number. Few rows of a chunk are enough for weights in the
   second-level cache, because the multipliers are busy with three; more rows share those from slower memory. Threads
   share the chunks, or the products of each step if these are large and there are few chunks. */
__attribute__((unused)) static void go_run_recurrence(go_call *call, go_recurrence *run,
                                                      void (*chunk)(void *data, size_t index), void *data) {
    const double states = (double)run->kinds->gates * run->hidden * run->hidden;
    const double weights = states + (double)run->kinds->gates * run->hidden * run->inputs;
    const int64_t most = states > 0x1p17 ? 12 : 3;
    run->row_chunks = (run->batch + most - 1) / most;
    run->rows = (run->batch + run->row_chunks - 1) / run->row_chunks;
    run->row_chunks = (run->batch + run->rows - 1) / run->rows;
    const size_t chunks = (size_t)(run->row_chunks * run->directions);
    if (states > 0x1p18 && chunks < 3) run->call = call;
    if (run->call || weights * run->steps * run->batch * run->directions < 0x1p18)
        for (size_t index = 0; index < chunks; index++) chunk(data, index);
    else go_parallel(call, chunk, data, chunks);
}

/* The input of a gate within its bounds. With a bias, onnxruntime turns NaN into the upper bound. */
GO_INLINE f32_w go_clipped(f32_w x, float clip, const int biased) {
    const f32_w bounded = more_w(less_w(x, splat_f32_w(clip)), splat_f32_w(-clip));
    return biased ? bounded : select_f32_w(x == x, bounded, x);
}

GO_INLINE f32_w go_load_units(const float *from, int64_t left) {
    return left >= LANES_w ? load_f32_w(from) : load_part_f32_w(from, (int)left);
}

GO_INLINE void go_store_state(const go_cell *cell, int64_t j, f32_w h) {
    store_f32_w(cell->h + j, h);
    if (!cell->y) return;
    const int64_t left = cell->hidden - j;
    if (left >= LANES_w) store_f32_w(cell->y + j, h);
    else store_part_f32_w(cell->y + j, h, (int)left);
}

/* Activations of gates, for normal numbers alone: sigmoid(x) = 1 / (1 + e) and tanh(x) = t / (t + 2), where e = exp(-x)
   and t = exp(2 |x|) - 1. */
GO_INLINE f32_w go_logistic_divisor(f32_w x) {
    f32_w n, r = split_exp_w(more_w(splat_f32_w(-87), less_w(splat_f32_w(87), -x)), &n);
    return 1 + scale_w(1 + expm1_near_0_w(r), n);
}

GO_INLINE f32_w go_tanh_dividend(f32_w x) {
    const f32_w bounded = less_w(splat_f32_w(10), abs_f32_w(x));
    f32_w n, r = split_exp_w(bounded + bounded, &n);
    const f32_w power = scale_w(splat_f32_w(1), n);
    return fma_w(expm1_near_0_w(r), power, power - 1);
}

/* sigmoid(x) */
GO_INLINE f32_w go_logistic(f32_w x) { return 1 / go_logistic_divisor(x); }

/* sigmoid(x) tanh(y), with one division */
GO_INLINE f32_w go_logistic_tanh(f32_w x, f32_w y) {
    const f32_w t = go_tanh_dividend(y), product = t / (go_logistic_divisor(x) * (t + 2));
    return (f32_w)((u32_w)product ^ ((u32_w)y & 0x80000000));
}

/* Gates i, o, f, c */
GO_INLINE void go_lstm_gates(const go_cell *cell, f32_w (*f)(f32_w), f32_w (*g)(f32_w), f32_w (*act)(f32_w), float clip,
                             const int biased, const int coupled) {
    const int common = f == go_logistic && g == tanh_w && act == tanh_w && !coupled;
    const int64_t whole = cell->whole, hidden = cell->hidden;
    for (int64_t j = 0; j < whole; j += LANES_w) {
        const float *const sums = cell->sums + j, *const peephole = cell->peephole;
        f32_w i = load_f32_w(sums), o = load_f32_w(sums + whole), forget = load_f32_w(sums + 2 * whole);
        f32_w c = load_f32_w(cell->c + j);
        const f32_w next = go_clipped(load_f32_w(sums + 3 * whole), clip, biased);
        if (peephole) {
            i += c * go_load_units(peephole + j, hidden - j);
            forget += c * go_load_units(peephole + 2 * hidden + j, hidden - j);
        }
        i = go_clipped(i, clip, biased);
        if (common) {
            c = c * f(go_clipped(forget, clip, biased)) + go_logistic_tanh(i, next);
        } else {
            i = f(i);
            c = c * (coupled ? 1 - i : f(go_clipped(forget, clip, biased))) + i * g(next);
        }
        if (peephole) o += c * go_load_units(peephole + hidden + j, hidden - j);
        o = go_clipped(o, clip, biased);
        store_f32_w(cell->c + j, c);
        go_store_state(cell, j, common ? go_logistic_tanh(o, c) : f(o) * act(c));
    }
}

/* Gates z, r, h: the reset state, for the product of the hidden gate */
GO_INLINE void go_gru_reset(const go_cell *cell, f32_w (*f)(f32_w), float clip, const int biased) {
    for (int64_t j = 0; j < cell->whole; j += LANES_w) {
        const f32_w r = f(go_clipped(load_f32_w(cell->sums + cell->whole + j), clip, biased));
        store_f32_w(cell->reset + j, r * load_f32_w(cell->h + j));
    }
}

/* The state from the hidden gate; with `linear`, also reset */
GO_INLINE void go_gru_update(const go_cell *cell, f32_w (*f)(f32_w), f32_w (*g)(f32_w), float clip, const int biased,
                             const int linear) {
    const int64_t whole = cell->whole;
    for (int64_t j = 0; j < whole; j += LANES_w) {
        const f32_w z = f(go_clipped(load_f32_w(cell->sums + j), clip, biased));
        f32_w next = load_f32_w(cell->sums + 2 * whole + j);
        if (linear) next += f(go_clipped(load_f32_w(cell->sums + whole + j), clip, biased)) * load_f32_w(cell->linear + j);
        next = g(go_clipped(next, clip, biased));
        go_store_state(cell, j, (1 - z) * next + z * load_f32_w(cell->h + j));
    }
}

GO_INLINE void go_rnn_gate(const go_cell *cell, f32_w (*f)(f32_w), float clip) {
    for (int64_t j = 0; j < cell->whole; j += LANES_w)
        go_store_state(cell, j, f(go_clipped(load_f32_w(cell->sums + j), clip, 0)));
}
