"""Cutting long straight-line regions into functions: LLVM's time grows faster than the length of a block.

A region is cut where few values are live. Values that cross a cut, or come from outside, pass through slots of the
workspace; slots are used again once their value is dead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from knuckle.native.ir import Branch, Buffer, Call, Loop, Node, Region, Store, operands, sub_regions, walk
from knuckle.native.llvm_ops import memory_type, splat_text, type_text

REGION_LIMIT = 60000  # operations; longer regions are cut
SHORTEST, LONGEST = 1500, 3500  # operations of a piece
SLOT_BYTES = 8
MEMORY_WEIGHT = 3


@dataclass
class Piece:
    """Neighbouring statements of a region: what they define, and what they use from before."""

    statements: list
    defines: dict[Node, None] = field(default_factory=dict)
    needs: list[Node] = field(default_factory=list)


class Weights:
    """How much work statements are for LLVM: loads and stores more than arithmetic, those of single lanes most."""

    def __init__(self, lanes: int = 1, lanewise: Iterable[Buffer] = ()):
        self._lanes, self._lanewise = lanes, set(lanewise)
        self._regions: dict[Region, int] = {}

    def region(self, region: Region) -> int:
        if region not in self._regions:
            self._regions[region] = sum(self.statement(s) for s in region.statements)
        return self._regions[region]

    def is_read_again(self, node: Node) -> bool:
        """Whether a value is an element of an array that is read again where it is needed instead of being passed."""
        if is_input_element(node):
            return self._lanes == 1 or node.attr.buffer not in self._lanewise
        return node.op == "load" and node.attr.buffer.kept

    def statement(self, statement) -> int:
        if isinstance(statement, (Loop, Branch)):
            return 1 + sum(self.region(r) for r in sub_regions(statement))
        if isinstance(statement, Call) or (isinstance(statement, Node) and statement.op != "load"):
            return 1
        buffer = statement.buffer if isinstance(statement, Store) else statement.attr.buffer
        apart = buffer in self._lanewise and buffer.kind != "workspace"
        return MEMORY_WEIGHT * (self._lanes if apart else 1)


def is_input_element(node: Node) -> bool:
    return node.op == "load" and node.args[0].op == "const" and node.attr.buffer.kind == "input"


def defined_by(statement) -> list[Node]:
    if isinstance(statement, Node):
        return [statement]
    return statement.results if isinstance(statement, (Loop, Branch)) else []


def used_by(statement) -> Iterable[Node]:
    """Every value that a statement, with all that is nested in it, reads."""
    yield from operands(statement)
    for region in sub_regions(statement):
        for inner in walk(region):
            yield from operands(inner)


def _defined_inside(statement) -> set[Node]:
    """Values that exist only inside a statement."""
    inside: set[Node] = set()
    for region in sub_regions(statement):
        for inner in walk(region):
            inside.update(defined_by(inner))
            inside.update(_variables(inner))
    return inside | set(_variables(statement))


def _variables(statement) -> list[Node]:
    if not isinstance(statement, Loop):
        return []
    return statement.phis + ([statement.counter] if statement.counter is not None else [])


def outside_needs(statement) -> list[Node]:
    inside = _defined_inside(statement) if sub_regions(statement) else ()
    return [n for n in used_by(statement) if n.op != "const" and n not in inside]


def cut(region: Region, escapes: list[Node], weights: Weights) -> list[Piece]:
    """The region's statements in pieces, cut where the fewest values cross."""
    statements = region.statements
    needs = [outside_needs(s) for s in statements]
    costs = [weights.statement(s) for s in statements]
    crossing = _crossing(statements, needs, escapes, weights)
    pieces, start = [], 0
    while start < len(statements):
        stop = _best_cut(statements, costs, crossing, start)
        piece = Piece(statements[start:stop])
        for s, wanted in zip(piece.statements, needs[start:stop], strict=True):
            piece.needs += [n for n in wanted if n not in piece.defines]
            piece.defines.update(dict.fromkeys(defined_by(s)))
        piece.needs = list(dict.fromkeys(piece.needs))
        pieces.append(piece)
        start = stop
    return pieces


def _crossing(statements: list, needs: list[list[Node]], escapes: list[Node], weights: Weights) -> list[int]:
    """For each position, how many of the region's values are kept across it."""
    last: dict[Node, int] = {n: len(statements) for n in escapes}
    for position, wanted in enumerate(needs):
        for n in wanted:
            last[n] = max(last.get(n, 0), position)
    change = [0] * (len(statements) + 2)
    for position, s in enumerate(statements):
        for n in defined_by(s):
            if weights.is_read_again(n):
                continue
            end = last.get(n, position)
            change[position + 1] += 1
            change[end + 1] -= 1
    live, counts = 0, []
    for step in change:
        live += step
        counts.append(live)
    return counts


def _best_cut(statements: list, costs: list[int], crossing: list[int], start: int) -> int:
    total, best, best_count, position = 0, None, 0, start
    while position < len(statements) and (total < LONGEST or best is None):
        total += costs[position]
        position += 1
        if _splits_pair(statements, position):
            continue
        if total >= SHORTEST and (best is None or crossing[position] < best_count):
            best, best_count = position, crossing[position]
    return len(statements) if (position >= len(statements) and total < LONGEST) or best is None else best


def _splits_pair(statements: list, position: int) -> bool:
    """Whether a sine-cosine pair and one of its halves lie on both sides."""
    previous, following = statements[position - 1], statements[position] if position < len(statements) else None
    opened = isinstance(previous, Node) and previous.op == "sincos"
    return opened or (isinstance(following, Node) and following.op in ("first", "second"))


class Slots:
    """Places in the workspace for values that pass between functions."""

    def __init__(self, start: int):
        self.start = self.top = start
        self.places: dict[Node | str, int] = {}
        self._free: dict[int, list[int]] = {}

    def take(self, key: Node | str, size: int) -> int:
        if key not in self.places:
            free = self._free.setdefault(size, [])
            if free:
                self.places[key] = free.pop()
            else:
                place = -(-self.top // size) * size  # so that no vector lies across two cache lines
                self.places[key], self.top = place, place + size
        return self.places[key]

    def release(self, key: Node | str, size: int) -> None:
        self._free.setdefault(size, []).append(self.places.pop(key))


def store_slot(emitter, slots: Slots, node: Node) -> None:
    """Keep a value for functions to come."""
    operand = emitter.operand(node)
    lanes = emitter.lanes if operand.stride is None else 1
    at = slots.take(node, SLOT_BYTES * lanes)
    put_slot(emitter, at, operand.text, node.dtype, lanes)
    emitter.slot_lanes[node], emitter.slot_strides[node] = lanes, operand.stride


def put_slot(emitter, at: int, text: str, code: str, lanes: int) -> None:
    out, kind = emitter.out, memory_type(code, lanes)
    if code == "b1":
        text = out.let(f"zext {type_text(code, lanes)} {text} to {kind}")
    address = out.let(f"getelementptr i8, ptr %workspace, i64 {at}")
    out.do(f"store {kind} {text}, ptr {address}, align {SLOT_BYTES}")


def get_slot(emitter, at: int, code: str, lanes: int) -> str:
    out, kind = emitter.out, memory_type(code, lanes)
    address = out.let(f"getelementptr i8, ptr %workspace, i64 {at}")
    text = out.let(f"load {kind}, ptr {address}, align {SLOT_BYTES}")
    return out.let(f"icmp ne {kind} {text}, {splat_text('0', 'u1', lanes)}") if code == "b1" else text


def load_slot(emitter, slots: Slots, node: Node) -> None:
    if emitter.weights.is_read_again(node):
        emitter.env[node] = emitter.load(node)
        return
    lanes = emitter.slot_lanes[node]
    text = get_slot(emitter, slots.places[node], node.dtype, lanes)
    emitter.env[node] = emitter.as_operand(text, emitter.slot_strides[node])


def emit_pieces(emitter, region: Region, escapes: list[Node]) -> None:
    """The region as calls of functions, one for each piece."""
    pieces = cut(region, escapes, emitter.weights)
    slots = Slots(emitter.slot_top)
    own = {n for piece in pieces for n in piece.defines}
    last = _last_piece(pieces, escapes)
    for n in dict.fromkeys(n for piece in pieces for n in piece.needs if n not in own):
        if not emitter.weights.is_read_again(n):
            store_slot(emitter, slots, n)
    if emitter.mask is not None:
        put_slot(emitter, slots.take("mask", SLOT_BYTES * emitter.lanes), emitter.mask, "b1", emitter.lanes)
    for number, piece in enumerate(pieces):
        kept = {n for n in piece.defines if last.get(n, -1) > number and not emitter.weights.is_read_again(n)}
        _emit_piece(emitter, piece, slots, kept)
        for n in [n for n in slots.places if isinstance(n, Node) and last.get(n, -1) <= number]:
            slots.release(n, SLOT_BYTES * emitter.slot_lanes[n])
    for n in dict.fromkeys(n for n in escapes if n in own):
        load_slot(emitter, slots, n)


def _last_piece(pieces: list[Piece], escapes: list[Node]) -> dict[Node, int]:
    last: dict[Node, int] = {}
    for number, piece in enumerate(pieces):
        last.update(dict.fromkeys(piece.needs, number))
    last.update({n: len(pieces) for n in escapes if n.op != "const"})
    return last


def _emit_piece(emitter, piece: Piece, slots: Slots, kept: set[Node]) -> None:
    name = emitter.piece_name()
    arguments = emitter.parameters()
    outer_mask = emitter.mask
    outside = emitter.begin_function()
    for n in piece.needs:
        load_slot(emitter, slots, n)
    if outer_mask is not None:
        emitter.mask = get_slot(emitter, slots.places["mask"], "b1", emitter.lanes)
    # slots of values still to come are taken now, so that nested pieces lie behind them
    for n in piece.defines:
        if n in kept:
            slots.take(n, SLOT_BYTES * emitter.width_of(n))
    emitter.slot_top = slots.top
    emitter.slot_most = max(emitter.slot_most, slots.top)
    for statement in piece.statements:
        emitter.emit_statement(statement)
        for n in defined_by(statement):
            if n in kept:
                store_slot(emitter, slots, n)
    emitter.slot_top = slots.start
    emitter.finish_function(f"define internal void @{name}({arguments})")
    emitter.resume_function(outside)
    emitter.mask = outer_mask
    emitter.out.do(f"call void @{name}({arguments})")
