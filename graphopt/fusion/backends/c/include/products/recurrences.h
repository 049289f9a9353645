/* LSTM, GRU and RNN (ONNX, layout 0) in single precision, as onnxruntime computes them.

   A chunk of work is a direction of some rows of the batch, from the first step to the last. The products of inputs are
   computed for a block of steps at once, those of states step by step; both are added up in `sums`, [step][row][group]
   [units / LANES_w][gate of the group][LANES_w]. A group of gates is computed by one product of states, so that gates
   follow as soon as a panel of it is computed. Gates are padded to whole vectors. Rows whose sequence has ended are
   skipped. */

/* One row in one step. */
typedef struct {
    const float *sums;     /* the inputs of the gates, with biases */
    const float *linear;   /* [whole]: the recurrent part of GRU's hidden gate, if it is computed before the reset */
    const float *h;        /* [whole]: the state before the step */
    float *next, *c;       /* [whole]: the state after the step, and LSTM's cell */
    float *reset;          /* [whole]: GRU's reset state */
    const float *peephole; /* [3][hidden] or NULL */
    float *y;              /* [hidden] or NULL */
    int64_t hidden, whole, at; /* at: the index in Y */
} go_cell;

/* The kind of a cell. Gates are computed for the units from `first` to `stop` - 1, which are whole vectors. */
typedef struct {
    int gates, first; /* gates; how many of them the first product of a step computes */
    int linear;       /* whether the second product has the state as its operand, not the reset state */
    int is_rnn;       /* RNN: whether the first product is skipped if the first state is omitted */
    void (*before)(const go_cell *, int64_t first, int64_t stop); /* after the first product, or NULL */
    void (*after)(const go_cell *, int64_t first, int64_t stop);  /* after the second product, if there is one */
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
    int64_t rows, row_chunks;              /* set by go_recurrence_run: rows of a chunk, chunks of a direction */
    go_call *call;                         /* whose threads share the products of a chunk, or NULL */
    int failed;
} go_recurrence;

enum {
    GO_RECURRENCE_ROWS = 24,  /* rows of input products that are computed at once, so that the sums stay in the caches */
    GO_RECURRENCE_PANELS = 4  /* panels between computations of gates; starting and ending the loops has a cost */
};

/* The first column in the sums of LANES_w units of a gate, from `unit` on */
GO_INLINE int64_t go_recurrence_column(int64_t gate, int64_t unit, int64_t hidden, int64_t gates, int64_t first) {
    if (gate < first) return unit * first + gate * LANES_w;
    return first * go_panel_whole(hidden) + unit * (gates - first) + (gate - first) * LANES_w;
}

/* Packs weights [gates][hidden][depth] of the gates from `gate` up to `stop` in panels of `vectors` vectors. */
GO_INLINE float *go_recurrence_pack(const float *from, int64_t gate, int64_t stop, int64_t hidden, int64_t gates,
                                    int64_t first, int64_t depth, int64_t vectors, float *to) {
    const int64_t whole = go_panel_whole(hidden), columns = (stop - gate) * whole, width = vectors * LANES_w;
    const int64_t start = go_recurrence_column(gate, 0, hidden, gates, first);
    for (; gate < stop; gate++)
        for (int64_t unit = 0; unit < whole; unit += LANES_w) {
            const int64_t column = go_recurrence_column(gate, unit, hidden, gates, first) - start;
            const int64_t panel = column / width * width, wide = columns - panel < width ? columns - panel : width;
            float *const target = to + panel * depth + (column - panel);
            for (int64_t k = 0; k < depth; k++)
                for (int64_t lane = 0; lane < LANES_w; lane++)
                    target[k * wide + lane] =
                        unit + lane < hidden ? from[(gate * hidden + unit + lane) * depth + k] : 0;
        }
    return to + columns * depth;
}

/* Weights [directions][gates][hidden][depth] in panels: those of inputs in narrow ones, those of states in wide ones, each
   group of gates apart */
GO_INLINE size_t go_recurrence_bytes(const int64_t *dims, int64_t gates) {
    return (size_t)(dims[0] * gates * go_panel_whole(dims[1] / gates) * dims[2]) * sizeof(float);
}

GO_INLINE void go_recurrence_pack_w(const float *from, const int64_t *dims, int64_t gates, int64_t first, float *to) {
    for (int64_t direction = 0; direction < dims[0]; direction++, from += dims[1] * dims[2])
        to = go_recurrence_pack(from, 0, gates, dims[1] / gates, gates, first, dims[2], GO_PANEL_NARROW, to);
}

GO_INLINE void go_recurrence_pack_r(const float *from, const int64_t *dims, int64_t gates, int64_t first, float *to) {
    for (int64_t direction = 0; direction < dims[0]; direction++, from += dims[1] * dims[2]) {
        to = go_recurrence_pack(from, 0, first, dims[1] / gates, gates, first, dims[2], GO_PANEL_WIDE, to);
        to = go_recurrence_pack(from, first, gates, dims[1] / gates, gates, first, dims[2], GO_PANEL_WIDE, to);
    }
}

#define GO_RECURRENCE(name, gates, first) \
    __attribute__((unused)) static size_t go_##name##_bytes(const int64_t *dims) { \
        return go_recurrence_bytes(dims, gates); \
    } \
    __attribute__((unused)) static void go_##name##_pack_w(const void *from, const int64_t *dims, void *to) { \
        go_recurrence_pack_w(from, dims, gates, first, to); \
    } \
    __attribute__((unused)) static void go_##name##_pack_r(const void *from, const int64_t *dims, void *to) { \
        go_recurrence_pack_r(from, dims, gates, first, to); \
    }
GO_RECURRENCE(lstm, 4, 4)
GO_RECURRENCE(gru, 3, 2)
GO_RECURRENCE(rnn, 1, 1)
#undef GO_RECURRENCE

GO_INLINE int64_t go_recurrence_length(const go_recurrence *run, int64_t row) {
    return run->lengths ? run->lengths[row] : run->steps;
}

/* The biases of a direction, as in the sums, and the recurrent ones of the last gate, where the cell adds them apart */
GO_INLINE void go_recurrence_biases(const go_recurrence *run, const go_cell_kind *kind, int64_t direction, float *sums,
                                    float *apart) {
    const int64_t hidden = run->hidden, whole = go_panel_whole(hidden), width = kind->gates * whole;
    memset(sums, 0, (size_t)width * sizeof(float));
    memset(apart, 0, (size_t)whole * sizeof(float));
    if (!run->b) return;
    const float *const input = run->b + direction * 2 * kind->gates * hidden, *const state = input + kind->gates * hidden;
    for (int64_t gate = 0; gate < kind->gates; gate++)
        for (int64_t unit = 0; unit < hidden; unit += LANES_w) {
            const int64_t column = go_recurrence_column(gate, unit, hidden, kind->gates, kind->first);
            const int64_t count = hidden - unit < LANES_w ? hidden - unit : LANES_w, at = gate * hidden + unit;
            const int is_apart = gate >= kind->first && kind->linear;
            for (int64_t lane = 0; lane < count; lane++) {
                sums[column + lane] = is_apart ? input[at + lane] : input[at + lane] + state[at + lane];
                if (is_apart) apart[unit + lane] = state[at + lane];
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
    int every;                       /* terms of states for each term of inputs beside them */
    float *sums;                     /* [2][block][rows][width]: of this block of steps and the next */
    float *bias, *apart;             /* [width], [whole]: see go_recurrence_biases */
    float *h[2];                     /* [rows][whole]: states, before even steps and before odd ones */
    float *c, *reset, *linear;       /* [rows][whole] */
    const float **input_a, **input_from, **a, **from;
    float **input_to, **to;          /* operands of the products: of inputs [block][rows], of a step [rows] */
    go_cell *cells;                  /* [rows]: the rows that a step computes */
} go_recurrence_chunk;

GO_INLINE int64_t go_recurrence_time(const go_recurrence_chunk *at, int64_t row, int64_t step) {
    return at->run->reverse || at->direction == 1 ? go_recurrence_length(at->run, at->start + row) - 1 - step : step;
}

/* The memory of a chunk; NULL if there is none. */
GO_INLINE void *go_recurrence_allocate(go_recurrence_chunk *at) {
    const int64_t inputs = at->block * at->rows, rows = at->rows;
    const double floats = (2. * inputs + 1) * at->width + (1 + 5. * rows) * at->whole;
    const double pointers = 3. * (inputs + rows) * sizeof(void *) + (double)rows * sizeof(go_cell);
    const double bytes = floats * sizeof(float) + pointers + 64;
    char *const own = bytes < 0x1p48 ? malloc((size_t)bytes) : NULL;
    if (!own) return NULL;
    at->sums = go_next_line(own);
    at->bias = at->sums + 2 * inputs * at->width;
    at->apart = at->bias + at->width;
    at->h[0] = at->apart + at->whole;
    at->c = at->h[0] + rows * at->whole;
    at->h[1] = at->c + rows * at->whole;
    at->reset = at->h[1] + rows * at->whole;
    at->linear = at->reset + rows * at->whole;
    at->cells = (go_cell *)(at->linear + rows * at->whole);
    at->input_a = (const float **)(at->cells + rows);
    at->input_from = at->input_a + inputs;
    at->a = at->input_from + inputs;
    at->from = at->a + rows;
    at->input_to = (float **)(at->from + rows);
    at->to = at->input_to + inputs;
    return own;
}

GO_INLINE float *go_recurrence_sums(const go_recurrence_chunk *at, int64_t row, int64_t step) {
    return at->sums + (step % (2 * at->block) * at->rows + row) * at->width;
}

/* The product of the inputs from step `first` up to `stop` */
GO_INLINE go_panel_product go_recurrence_inputs(const go_recurrence_chunk *at, int64_t first, int64_t stop) {
    const go_recurrence *const run = at->run;
    const float *const w = run->w + at->direction * at->width * run->inputs;
    go_panel_product p = {w, run->inputs, at->width, GO_PANEL_NARROW, at->input_a, at->input_from, at->input_to, 0, 0, 0};
    for (int64_t step = first; step < stop; step++)
        for (int64_t i = 0; i < at->rows; i++) {
            if (step >= go_recurrence_length(run, at->start + i)) continue;
            const int64_t row = go_recurrence_time(at, i, step) * run->batch + at->start + i;
            at->input_a[p.rows] = run->x + row * run->inputs;
            at->input_from[p.rows] = at->bias;
            at->input_to[p.rows++] = go_recurrence_sums(at, i, step);
        }
    return p;
}

/* The index in Y of a row at a time */
GO_INLINE int64_t go_recurrence_place(const go_recurrence_chunk *at, int64_t row, int64_t time) {
    const go_recurrence *const run = at->run;
    return ((time * run->directions + at->direction) * run->batch + at->start + row) * run->hidden;
}

/* The cells of the rows that a step computes; returns the number of rows. */
GO_INLINE int64_t go_recurrence_cells(const go_recurrence_chunk *at, int64_t step) {
    const go_recurrence *const run = at->run;
    int64_t count = 0;
    for (int64_t i = 0; i < at->rows; i++) {
        if (step >= go_recurrence_length(run, at->start + i)) continue;
        const int64_t place = go_recurrence_place(at, i, go_recurrence_time(at, i, step));
        at->cells[count++] = (go_cell){
            .sums = go_recurrence_sums(at, i, step),
            .linear = at->linear + i * at->whole,
            .h = at->h[step & 1] + i * at->whole,
            .next = at->h[(step + 1) & 1] + i * at->whole,
            .c = at->c + i * at->whole,
            .reset = at->reset + i * at->whole,
            .peephole = run->peepholes ? run->peepholes + at->direction * 3 * run->hidden : NULL,
            .y = run->y ? run->y + place : NULL,
            .hidden = run->hidden,
            .whole = at->whole,
            .at = place,
        };
    }
    return count;
}

/* Multiplies the states of `at` by the weights of `gates` gates. Parts of `beside` are computed at the same time, and
   `then` is called for each row after each group of panels. Odd steps visit the panels in reverse order, because the
   previous step has left the last ones in the first-level cache. */
GO_INLINE void go_recurrence_multiply(const go_recurrence_chunk *at, const float *m, int64_t gates, int64_t rows,
                                      int64_t step, go_panel_product *beside,
                                      void (*then)(const go_cell *, int64_t, int64_t)) {
    const int64_t whole = at->whole, width = GO_PANEL_WIDE * LANES_w, panels = go_ceil_div(gates * whole, width);
    const go_panel_product p = {m, at->run->hidden, gates * whole, GO_PANEL_WIDE, at->a, at->from, at->to, rows, 0, 0};
    if (at->run->call) go_panel_share(at->run->call, &p);
    for (int64_t number = 0, count; number < panels; number += count) {
        count = panels - number < GO_RECURRENCE_PANELS ? panels - number : GO_RECURRENCE_PANELS;
        const int64_t start = step & 1 ? panels - 1 - number : number, last = step & 1 ? start - count + 1 : start;
        if (!at->run->call) go_panel_beside(&p, start * width, step & 1 ? -width : width, count, beside, at->every);
        const int64_t first = last * width / gates, stop = (last + count) * width / gates;
        for (int64_t i = 0; then && i < rows; i++) then(&at->cells[i], first, stop < whole ? stop : whole);
    }
}

/* One step of the rows that take part in it */
GO_INLINE void go_recurrence_step(const go_recurrence_chunk *at, int64_t step, go_panel_product *beside) {
    const go_recurrence *const run = at->run;
    const go_cell_kind *const kind = at->kind;
    const float *const r = run->r + at->direction * at->width * run->hidden;
    const int64_t columns = kind->first * at->whole, count = go_recurrence_cells(at, step);
    for (int64_t i = 0; i < count; i++) {
        at->a[i] = at->cells[i].h;
        at->from[i] = at->to[i] = (float *)at->cells[i].sums;
    }
    if (step > 0 || run->h0 || !kind->is_rnn) { /* infinite weights make NaN of 0 */
        go_recurrence_multiply(at, r, kind->first, count, step, beside, kind->before);
    } else {
        for (int64_t i = 0; i < count; i++) kind->before(&at->cells[i], 0, at->whole);
    }
    if (kind->after) {
        for (int64_t i = 0; i < count; i++) {
            at->a[i] = kind->linear ? at->cells[i].h : at->cells[i].reset;
            at->from[i] = kind->linear ? at->apart : at->cells[i].sums + columns;
            at->to[i] = (float *)(kind->linear ? at->cells[i].linear : at->cells[i].sums + columns);
        }
        go_recurrence_multiply(at, r + columns * run->hidden, kind->gates - kind->first, count, step, beside, kind->after);
    }
    if (!run->data) return;
    for (int64_t i = 0; i < count; i++) run->finish(run->data, at->cells[i].at, run->hidden, at->cells[i].next);
}

/* Zeros of Y after the end of a sequence, and the last states; the row's memory is overwritten. */
GO_INLINE void go_recurrence_end(const go_recurrence_chunk *at, int64_t i) {
    const go_recurrence *const run = at->run;
    const int64_t length = go_recurrence_length(run, at->start + i);
    const int64_t state = (at->direction * run->batch + at->start + i) * run->hidden;
    const size_t size = (size_t)run->hidden * sizeof(float);
    float *const h = at->h[length & 1] + i * at->whole, *const c = at->c + i * at->whole;
    if (!length) memset(h, 0, size), memset(c, 0, size);
    if (run->yh) memcpy(run->yh + state, h, size);
    if (run->yc) memcpy(run->yc + state, c, size);
    memset(h, 0, size);
    for (int64_t time = length; time < run->steps; time++) {
        if (run->y) memcpy(run->y + go_recurrence_place(at, i, time), h, size);
        if (run->data) run->finish(run->data, go_recurrence_place(at, i, time), run->hidden, h);
    }
}

GO_NOINLINE void go_recurrence_compute(go_recurrence *run, int64_t chunk) {
    const int64_t start = chunk % run->row_chunks * run->rows, left = run->batch - start;
    go_recurrence_chunk at = {.run = run, .direction = chunk / run->row_chunks, .start = start};
    at.rows = left < run->rows ? left : run->rows;
    at.kind = &run->kinds[at.direction];
    at.whole = go_panel_whole(run->hidden);
    at.width = at.kind->gates * at.whole;
    for (int64_t i = 0; i < at.rows; i++)
        if (go_recurrence_length(run, start + i) > at.longest) at.longest = go_recurrence_length(run, start + i);
    at.block = GO_RECURRENCE_ROWS > at.rows ? GO_RECURRENCE_ROWS / at.rows : 1;
    if (at.rows == 1 && GO_PANEL_BESIDE && !run->call) at.block = GO_PANEL_BESIDE;
    void *const own = go_recurrence_allocate(&at);
    if (!own) {
        __atomic_store_n(&run->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    const size_t size = (size_t)run->hidden * sizeof(float);
    go_recurrence_biases(run, at.kind, at.direction, at.bias, at.apart);
    memset(at.h[0], 0, (size_t)(3 * at.rows * at.whole) * sizeof(float)); /* and c, and h[1] */
    for (int64_t i = 0; i < at.rows; i++) {
        const int64_t state = (at.direction * run->batch + start + i) * run->hidden;
        if (run->h0) memcpy(at.h[0] + i * at.whole, run->h0 + state, size);
        if (run->c0) memcpy(at.c + i * at.whole, run->c0 + state, size);
    }

    /* The first block is the short one: nothing is computed beside its product, and all other blocks are whole. */
    int64_t first = 0, stop = at.longest ? (at.longest - 1) % at.block + 1 : 0;
    go_panel_product inputs = go_recurrence_inputs(&at, first, stop);
    while (first < at.longest) {
        const int64_t next = stop + at.block < at.longest ? stop + at.block : at.longest;
        if (run->call) go_panel_share(run->call, &inputs);
        else go_panel_finish(&inputs);
        inputs = go_recurrence_inputs(&at, stop, next);
        at.every = go_panel_every(at.width, run->inputs, (stop - first) * at.width, run->hidden);
        for (int64_t step = first; step < stop; step++) go_recurrence_step(&at, step, &inputs);
        first = stop, stop = next;
    }

    for (int64_t i = 0; i < at.rows; i++) go_recurrence_end(&at, i);
    free(own);
}

/* Runs all chunks, whose results do not depend on their number. Few rows of a chunk are enough for weights in the
   second-level cache, because the multipliers are busy with three; more rows share those from slower memory. Threads
   share the chunks, or the products of each step if these are large and there are few chunks. */
__attribute__((unused)) static void go_recurrence_run(go_call *call, go_recurrence *run,
                                                      void (*chunk)(void *data, size_t index), void *data) {
    const double states = (double)run->kinds->gates * run->hidden * run->hidden;
    const double weights = states + (double)run->kinds->gates * run->hidden * run->inputs;
    const int64_t most = states > 0x1p17 ? 12 : 3;
    run->row_chunks = go_ceil_div(run->batch, most);
    run->rows = go_ceil_div(run->batch, run->row_chunks);
    run->row_chunks = go_ceil_div(run->batch, run->rows);
    const size_t chunks = (size_t)(run->row_chunks * run->directions);
    if (states > 0x1p18 && chunks < 3) run->call = call;
    if (run->call || weights * run->steps * run->batch * run->directions < 0x1p18)
        for (size_t index = 0; index < chunks; index++) chunk(data, index);
    else go_parallel(call, chunk, data, chunks);
}
