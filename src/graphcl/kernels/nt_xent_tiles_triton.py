"""The kernels of NT-Xent over tiles of pairs. `nt_xent_triton` says what they compute.

The rows of a table are `tiles` tiles of first views, and as many of second views. In a tile against
the table's own rows, a row meets itself where both tiles are the same, and its positive where they
are `tiles` apart: both times on the diagonal.
"""

import triton
import triton.language as tl

_SIZES = ["top", "left", "nodes", "others", "tiles", "columns", "height", "width", "count", "depth"]


@triton.jit  # type: ignore[untyped-decorator]
def _place(tile, height, TRIANGLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Returns row and column of a tile, counted column by column; TRIANGLE: down to the diagonal.

    Tiles of the triangle come first: column c has c + 1 of them and begins at tile c (c + 1) / 2.
    """
    if TRIANGLE:
        corner = height * (height + 1) // 2
        column = ((tl.sqrt(8.0 * tile + 1.0) - 1.0) / 2.0).to(tl.int32)
        column -= (column * (column + 1) // 2 > tile).to(tl.int32)  # the root is approximate
        column += ((column + 1) * (column + 2) // 2 <= tile).to(tl.int32)
        row = tl.where(tile < corner, tile - column * (column + 1) // 2, (tile - corner) % height)
        column = tl.where(tile < corner, column, height + (tile - corner) // height)
    else:
        row = tile % height
        column = tile // height
    return row, column


@triton.jit  # type: ignore[untyped-decorator]
def _log_sum_exp2(scores, axis: tl.constexpr):  # type: ignore[no-untyped-def]
    highest = tl.maximum(tl.max(scores, axis), -1e30)  # finite if every pair is masked
    sums = tl.sum(tl.exp2(scores - tl.expand_dims(highest, axis)), axis)
    return highest + tl.log2(sums)


@triton.jit  # type: ignore[untyped-decorator]
def _nodes_of(tile, tiles, SIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Returns the nodes of a tile's lanes, and whether these are second views."""
    second = (tile >= tiles).to(tl.int32)
    return (tile - second * tiles) * SIDE + tl.arange(0, SIDE), second


@triton.jit  # type: ignore[untyped-decorator]
def _load_weights(weights, tile, tiles, nodes, other, SIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Returns r (cold: ℓ) of a tile's rows; `other` for padding."""
    node, second = _nodes_of(tile, tiles, SIDE)
    return tl.load(weights + second * nodes + node, mask=node < nodes, other=other)


@triton.jit  # type: ignore[untyped-decorator]
def _columns(k, depth, SPLIT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Returns where a product's operands are in both tables.

    SPLIT tables [high | low] are multiplied as low·high + high·low + high·high, the small sums
    first: a tensor core cuts off a little at every step, in proportion to the sum so far.
    """
    if SPLIT:
        small = k < 2 * depth
        rest = tl.where(small, k, k - 2 * depth)
        return tl.where(k < depth, k + depth, tl.where(small, k - depth, rest)), rest
    return k, k


@triton.jit(do_not_specialize=_SIZES)  # type: ignore[untyped-decorator]
def sums_kernel(  # type: ignore[no-untyped-def]
    z, other, partials, top, left, nodes, others, tiles, columns, height, width, depth, scale,
    factor, OWN: tl.constexpr, COLD: tl.constexpr,
    SPLIT: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Sums E over each tile of a block: by row and, for OWN rows, by column, as E is symmetric.

    `top`, `left`, `height` and `width` are in tiles, `tiles` and `columns` are those of a view. For
    OWN rows the block begins on the diagonal. `partials` has [width, height * SIDE] sums for the
    rows of the block, then, for OWN rows, [height, (width - height) * SIDE] for the rows below it.
    """
    count = height * width
    if OWN:
        count -= height * (height - 1) // 2
    lanes = tl.arange(0, SIDE)
    for tile in tl.range(tl.program_id(0), count, tl.num_programs(0), flatten=True):
        row, column = _place(tile, height, OWN)
        here, there = top + row, left + column
        scores = tl.zeros((SIDE, SIDE), tl.float32)
        for k in range(0, 3 * depth if SPLIT else depth, DEPTH):
            k_here, k_there = _columns(k, depth, SPLIT)
            a, b = z.load([here * SIDE, k_here]), other.load([there * SIDE, k_there])
            scores = tl.dot(a, b.T, scores)
        scores *= factor
        i, _ = _nodes_of(here, tiles, SIDE)
        j, _ = _nodes_of(there, columns, SIDE)
        excluded = OWN & ((here == there) | (here + tiles == there))
        last = (tl.max(j, 0) >= others) | (OWN & (tl.max(i, 0) >= nodes))
        if excluded | last:
            distance = tl.where(excluded, 0, 2 * SIDE)
            kept = lanes[:, None] + distance != lanes[None, :]
            kept = kept & (i[:, None] < nodes) & (j[None, :] < others)
            scores = tl.where(kept, scores, float("-inf"))
        if COLD:
            row_sums, column_sums = _log_sum_exp2(scores, 1), _log_sum_exp2(scores, 0)
        else:
            terms = tl.exp2(scores - scale)
            row_sums, column_sums = tl.sum(terms, 1), tl.sum(terms, 0)
        tl.store(partials + (column * height + row) * SIDE + lanes, row_sums)
        below = width * height + row * (width - height) + column - height
        place = tl.where(column < height, row * height + column, below)
        # A tile on the diagonal stores no column sums, nor does any against other rows. The mask,
        # empty there, replaces an `if`: Triton 3.6 cannot flatten a loop that ends in one.
        wanted = (column - row) * SIDE if OWN else 0
        tl.store(partials + place * SIDE + lanes, column_sums, mask=lanes < wanted)


@triton.jit  # type: ignore[untyped-decorator]
def enlarged(peak, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Returns the factor of all weights: those of HALF precision must fit into float16.

    `peak` is the largest q_i + q_i+, and no weight P_ij + P_ji is above twice that. float16 then
    keeps its 11 bits for weights down to 2e-8 of the largest.
    """
    if HALF:
        return 2048.0 / tl.maximum(tl.load(peak), 1e-30)  # 0 if no row has a negative
    return 1.0


@triton.jit
def _finite(sums):  # type: ignore[no-untyped-def]
    """Returns enlarged weights as float16 can hold them.

    Weights of pairs are at most 4096. Those of padding have no bound, and an infinite one would
    make a product NaN, though padding is 0 in the other table.
    """
    return tl.minimum(sums, 65504.0)


@triton.jit  # type: ignore[untyped-decorator]
def _both(scores, r_row, r_column, scale, factor, COLD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Returns P + P^T of a tile."""
    if COLD:  # P <= 1; the minimum keeps padding, where z is 0, from overflowing
        sums = tl.exp2(tl.minimum(scores * factor - r_row[:, None], 0.0))
        sums += tl.exp2(tl.minimum(scores * factor - r_column[None, :], 0.0))
    else:
        sums = tl.exp2(scores * factor - scale) * (r_row[:, None] + r_column[None, :])
    return sums


@triton.jit(do_not_specialize=_SIZES)  # type: ignore[untyped-decorator]
def weights_kernel(  # type: ignore[no-untyped-def]
    z, other, weights, r, r_other, peak,
    top, left, nodes, others, tiles, columns, height, count, depth, scale, factor,
    OWN: tl.constexpr, DIAGONAL: tl.constexpr, COLD: tl.constexpr,
    HALF: tl.constexpr, ROUND: tl.constexpr,
    SPLIT: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Stores P_ij + P_ji for each tile of a block; in a diagonal block also its mirror image.

    Padding needs no mask: its rows of z are 0.
    """
    none = float("inf") if COLD else 0.0
    lanes = tl.arange(0, SIDE)
    enlarge = enlarged(peak, HALF)
    for tile in tl.range(tl.program_id(0), count, tl.num_programs(0), flatten=True):
        row, column = _place(tile, height, DIAGONAL)
        here, there = top + row, left + column
        scores = tl.zeros((SIDE, SIDE), tl.float32)
        for k in range(0, 3 * depth if SPLIT else depth, DEPTH):
            k_here, k_there = _columns(k, depth, SPLIT)
            a, b = z.load([here * SIDE, k_here]), other.load([there * SIDE, k_there])
            scores = tl.dot(a, b.T, scores)
        of_row = _load_weights(r, here, tiles, nodes, none, SIDE)
        of_column = _load_weights(r_other, there, columns, others, none, SIDE)
        if not COLD:
            of_row, of_column = of_row * enlarge, of_column * enlarge
        sums = _both(scores, of_row, of_column, scale, factor, COLD)
        if COLD:
            sums *= enlarge
        if OWN:
            excluded = (here == there) | (here + tiles == there)
            distance = tl.where(excluded, 0, 2 * SIDE)
            sums = tl.where(lanes[:, None] + distance != lanes[None, :], sums, 0.0)
        if ROUND:  # to the 10 bits that a tensor core reads of a float32
            sums = ((sums.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(
                tl.float32, bitcast=True
            )
        if HALF:
            sums = _finite(sums)
        sums = sums.to(weights.dtype)
        weights.store([row * SIDE, column * SIDE], sums)
        if DIAGONAL:  # a tile on the diagonal has no mirror image: a row outside stores nothing
            weights.store([tl.where(row < column, column * SIDE, 2**30), row * SIDE], sums.T)


@triton.jit(do_not_specialize=_SIZES)  # type: ignore[untyped-decorator]
def narrow_pull_kernel(  # type: ignore[no-untyped-def]
    z, other, partials, r, r_other, peak, nodes, others, tiles, columns, count, scale, factor,
    OWN: tl.constexpr, COLD: tl.constexpr,
    SIDE: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Sums (P_ij + P_ji) z_j over a part of the columns; a pair's weight is never stored.

    Program (row, part) sums `count` of the column tiles of `WIDE` rows. The columns that hold the
    row itself and its positive, which need a mask, are left out, and part 0 adds them at the end.
    """
    none = float("inf") if COLD else 0.0
    RATIO: tl.constexpr = SIDE // WIDE
    here, part = tl.program_id(0), tl.program_id(1)
    a = z.load([here * SIDE, 0])
    enlarge = enlarged(peak, True)
    own_enlarge = 1.0 if COLD else enlarge
    of_row = _load_weights(r, here, tiles, nodes, none, SIDE) * own_enlarge
    total = tl.zeros((SIDE, DEPTH), tl.float32)
    end = 2 * columns * RATIO
    first = tl.minimum(here, here - tiles * (2 * (here >= tiles).to(tl.int32) - 1)) * RATIO
    skip = RATIO if OWN else 0
    end -= 2 * skip
    second = first + (tiles - 1) * RATIO  # counted without the first `skip`
    for k in range(part * count, tl.minimum(part * count + count, end)):
        there = k
        if OWN:
            there = k + tl.where(k >= first, skip, 0) + tl.where(k >= second, skip, 0)
        b = other.load([there * WIDE, 0])
        scores = tl.dot(a, b.T)
        of_column = _load_weights(r_other, there, columns * RATIO, others, none, WIDE) * own_enlarge
        sums = _both(scores, of_row, of_column, scale, factor, COLD)
        if COLD:
            sums *= enlarge
        total = tl.dot(_finite(sums).to(b.dtype), b, total)
    if OWN:
        lanes, wide = tl.arange(0, SIDE), tl.arange(0, WIDE)
        for k in range(0, tl.where(part == 0, 2 * RATIO, 0)):
            there = first + k + tl.where(k >= RATIO, (tiles - 1) * RATIO, 0)
            b = other.load([there * WIDE, 0])
            scores = tl.dot(a, b.T)
            of_column = (
                _load_weights(r_other, there, columns * RATIO, others, none, WIDE) * own_enlarge
            )
            sums = _both(scores, of_row, of_column, scale, factor, COLD)
            sums = tl.where(lanes[:, None] != (k % RATIO) * WIDE + wide[None, :], sums, 0.0)
            if COLD:
                sums *= enlarge
            total = tl.dot(_finite(sums).to(b.dtype), b, total)
    partials.store([(part * tl.num_programs(0) + here) * SIDE, 0], total)
