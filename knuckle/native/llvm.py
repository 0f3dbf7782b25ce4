"""LLVM text of a whole program: one environment, or a batch over SIMD lanes.

In scalar code a `kernel` loop is written twice, over vectors of consecutive turns and for the remainder. In batch code
every value that depends on the batch is a vector with one lane per element; loops and branches that differ between
lanes run under a mask.
"""

from __future__ import annotations

from dataclasses import dataclass

from knuckle.native.ir import INDEX, Branch, Buffer, Call, Function, Loop, Node, Program, Region, Store, walk
from knuckle.native.llvm_lanes import emit_kernel, emit_lanes, is_vectorisable, lanes_of
from knuckle.native.llvm_ops import Lines, Operations, constant_text, memory_type, splat_text, type_text
from knuckle.native.llvm_split import REGION_LIMIT, SLOT_BYTES, Weights, emit_pieces, get_slot, put_slot
from knuckle.native.passes import ALIGNMENT, lay_out_workspace, varying_parts


@dataclass(frozen=True)
class Operand:
    """A value as written: one for all lanes (stride 0), base plus lane times stride, or a vector (stride None)."""

    text: str
    stride: int | None = 0


class Emitter:
    """Writes one function and the pieces it is cut into."""

    def __init__(
        self, program: Program, symbol: str, lanes: int = 1, batched: set[Buffer] | None = None, widest: int = 8
    ):
        self.program, self.symbol = program, symbol
        self.batch_lanes = lanes
        self.lanes = lanes
        self.batched = batched or set()
        self.operations = Operations()
        self.mask: str | None = None
        self.varying: set[Node] = set()
        self.varying_buffers: set[Buffer] = set()
        masked: set[Function] = set()
        if lanes > 1:
            parts = varying_parts(program.root, set(), set(self.batched), program.functions)
            self.varying, self.varying_buffers, masked = parts
        self.in_kernel = False
        self.spread = lanes_of(program, widest) if lanes == 1 else {}
        spread_buffers = {buffer for loop in self.spread.values() for buffer in loop.buffers}
        self.workspace_bytes = lay_out_workspace(program, max(lanes, widest), self.varying_buffers | spread_buffers)
        self.functions: list[str] = []
        self.out = Lines()
        self.env: dict[Node, Operand] = {}
        self.splats: dict[tuple[str, str, int], str] = {}
        self.pointers: dict = {}
        self.weights = Weights(lanes, self.varying_buffers)
        self.slot_top = self.slot_most = self.workspace_bytes + SLOT_BYTES * lanes * len(masked)
        self.mask_slots = {f: self.workspace_bytes + SLOT_BYTES * lanes * i for i, f in enumerate(masked)}
        self.slot_lanes: dict[Node, int] = {}
        self.slot_strides: dict[Node, int | None] = {}
        self._pieces = 0

    # values

    def operand(self, node: Node) -> Operand:
        if node.op == "const":
            return Operand(constant_text(node.attr, node.dtype))
        return self.env[node]

    def scalar(self, node: Node) -> str:
        operand = self.operand(node)
        assert operand.stride == 0, f"{node} differs between lanes"
        return operand.text

    def vector(self, node: Node) -> str:
        return self.widened(self.operand(node), node.dtype)

    def widened(self, operand: Operand, code: str) -> str:
        if operand.stride is None or self.lanes == 1:
            return operand.text
        if not operand.text.startswith("%"):
            if operand.stride:
                return _steps_text(int(operand.text), operand.stride, code, self.lanes)
            return splat_text(operand.text, code, self.lanes)
        key = (operand.text, self.out.block, self.lanes)
        if key not in self.splats:
            kind = type_text(code, self.lanes)
            single = self.out.let(f"insertelement {kind} poison, {type_text(code)} {operand.text}, i32 0")
            zeros = f"<{self.lanes} x i32> zeroinitializer"
            text = self.out.let(f"shufflevector {kind} {single}, {kind} poison, {zeros}")
            if operand.stride:
                text = self.out.let(f"add {kind} {text}, {_steps_text(0, operand.stride, code, self.lanes)}")
            self.splats[key] = text
        return self.splats[key]

    def emit_node(self, node: Node) -> None:
        if node.op == "load":
            self.env[node] = self.load(node)
            return
        operands = [self.operand(a) for a in node.args]
        strides = [o.stride for o in operands]
        if all(s == 0 for s in strides):
            text = self.operations.write(self.out, node, [o.text for o in operands], 1)
            self.env[node] = Operand(text)
            return
        stride = self.affine_stride(node, strides)
        if stride is not None:
            text = self.operations.write(self.out, node, [o.text for o in operands], 1)
            self.env[node] = Operand(text, stride)
            return
        wide = [self.widened(o, a.dtype) for o, a in zip(operands, node.args, strict=True)]
        self.env[node] = Operand(self.operations.write(self.out, node, wide, self.lanes), None)

    @staticmethod
    def affine_stride(node: Node, strides: list[int | None]) -> int | None:
        """How an index moves from lane to lane, where that is a constant."""
        if node.dtype != INDEX or any(s is None for s in strides):
            return None
        if node.op == "neg":
            return -strides[0]  # type: ignore[operator]
        if node.op not in ("add", "sub", "mul"):
            return None
        a, b = strides
        assert a is not None and b is not None
        if node.op != "mul":
            return a + b if node.op == "add" else a - b
        for constant, other in ((node.args[0], b), (node.args[1], a)):
            if constant.op == "const":
                return int(constant.attr) * other
        return None

    # memory

    def base(self, buffer: Buffer, lane: int | None = None) -> str:
        """The pointer to a buffer (of one lane, for inputs and outputs of a batch), made in the entry block."""
        key = (buffer, lane)
        if key not in self.pointers:
            self.pointers[key] = self._new_pointer(buffer, lane)
        return self.pointers[key]

    def _new_pointer(self, buffer: Buffer, lane: int | None) -> str:
        entry, name = self.out.entry, self.out.fresh("%p")
        if buffer.kind == "constant":
            return f"@{self.symbol}.constant{buffer.number}"
        if buffer.kind == "workspace":
            entry.append(f"  {name} = getelementptr i8, ptr %workspace, i64 {buffer.offset}")
        elif lane is None:
            table = "%inputs" if buffer.kind == "input" else "%outputs"
            slot = self.out.fresh("%p")
            entry.append(f"  {slot} = getelementptr ptr, ptr {table}, i64 {buffer.number}")
            entry.append(f"  {name} = load ptr, ptr {slot}")
        else:
            whole, step = self.base(buffer), self.out.fresh("%p")
            entry.append(f"  {step} = mul i64 {self._element(lane)}, {buffer.size}")
            entry.append(f"  {name} = getelementptr {memory_type(buffer.dtype)}, ptr {whole}, i64 {step}")
        return name

    def _element(self, lane: int) -> str:
        """The number of the batch element in a lane; lanes past the end repeat the last element."""
        key = ("element", lane)
        if key not in self.pointers:
            entry = self.out.entry
            raw, last, over, name = (self.out.fresh("%p") for _ in range(4))
            entry.append(f"  {raw} = add i64 %first, {lane}")
            entry.append(f"  {last} = sub i64 %stop, 1")
            entry.append(f"  {over} = icmp slt i64 {raw}, {last}")
            entry.append(f"  {name} = select i1 {over}, i64 {raw}, i64 {last}")
            self.pointers[key] = name
        return self.pointers[key]

    def address(self, buffer: Buffer, index: str, lane: int | None = None) -> str:
        base = self.base(buffer, lane)
        return (
            base
            if index == "0"
            else self.out.let(f"getelementptr {memory_type(buffer.dtype)}, ptr {base}, i64 {index}")
        )

    def interleaved(self, buffer: Buffer, index: str) -> str:
        kind = memory_type(buffer.dtype, self.lanes)
        return self.out.let(f"getelementptr {kind}, ptr {self.base(buffer)}, i64 {index}")

    def load(self, node: Node) -> Operand:
        buffer, index = node.attr.buffer, self.operand(node.args[0])
        lanewise = buffer in self.varying_buffers
        if index.stride == 0 and not lanewise:
            return Operand(self.read(buffer, self.address(buffer, index.text)))
        if lanewise and buffer.kind == "workspace" and index.stride == 0:
            return Operand(self.read(buffer, self.interleaved(buffer, index.text), self.lanes), None)
        if not lanewise and index.stride == 1:
            return Operand(self.read(buffer, self.address(buffer, index.text), self.lanes), None)
        return Operand(self.gather(buffer, index, lanewise), None)

    def gather(self, buffer: Buffer, index: Operand, lanewise: bool) -> str:
        index = self.of_active_lanes(index)
        kind, result = type_text(buffer.dtype, self.lanes), "poison"
        for lane in range(self.lanes):
            value = self.read(buffer, self.lane_address(buffer, index, lane, lanewise))
            result = self.out.let(f"insertelement {kind} {result}, {type_text(buffer.dtype)} {value}, i32 {lane}")
        return result

    def lane_address(self, buffer: Buffer, index: Operand, lane: int, lanewise: bool) -> str:
        if index.stride is None:
            place = self.out.let(f"extractelement <{self.lanes} x i64> {index.text}, i32 {lane}")
        elif index.stride and lane:
            place = self.out.let(f"add i64 {index.text}, {index.stride * lane}")
        else:
            place = index.text
        if lanewise and buffer.kind == "workspace":
            scaled = self.out.let(f"mul i64 {place}, {self.lanes}")
            place = self.out.let(f"add i64 {scaled}, {lane}")
            return self.address(buffer, place)
        return self.address(buffer, place, lane if lanewise else None)

    def read(self, buffer: Buffer, address: str, lanes: int = 1) -> str:
        kind = memory_type(buffer.dtype, lanes)
        value = self.out.let(f"load {kind}, ptr {address}, align {buffer.itemsize}")
        if buffer.dtype == "b1":
            return self.out.let(f"icmp ne {kind} {value}, {splat_text('0', 'u1', lanes)}")
        return value

    def put(self, buffer: Buffer, address: str, value: str, lanes: int = 1) -> None:
        kind = memory_type(buffer.dtype, lanes)
        if buffer.dtype == "b1":
            value = self.out.let(f"zext {type_text('b1', lanes)} {value} to {kind}")
        self.out.do(f"store {kind} {value}, ptr {address}, align {buffer.itemsize}")

    def emit_store(self, store: Store) -> None:
        buffer, index = store.buffer, self.operand(store.index)
        lanewise = buffer in self.varying_buffers
        value = self.operand(store.value)
        if not lanewise and index.stride == 0:
            assert value.stride == 0, "lanes write to one place"
            self.put(buffer, self.address(buffer, index.text), value.text)
        elif lanewise and buffer.kind == "workspace" and index.stride == 0:
            address, wide = self.interleaved(buffer, index.text), self.widened(value, buffer.dtype)
            if self.mask is not None:
                old = self.read(buffer, address, self.lanes)
                wide = self.blend(wide, old, buffer.dtype)
            self.put(buffer, address, wide, self.lanes)
        elif not lanewise and index.stride == 1:
            self.put(buffer, self.address(buffer, index.text), self.widened(value, buffer.dtype), self.lanes)
        else:
            self.scatter(buffer, index, self.widened(value, buffer.dtype), lanewise)

    def of_active_lanes(self, index: Operand) -> Operand:
        """An index per lane, zero in lanes that are masked off: what they computed may point anywhere."""
        if index.stride is not None or self.mask is None:
            return index
        kind = f"<{self.lanes} x i64>"
        return Operand(
            self.out.let(f"select <{self.lanes} x i1> {self.mask}, {kind} {index.text}, {kind} zeroinitializer"), None
        )

    def scatter(self, buffer: Buffer, index: Operand, value: str, lanewise: bool) -> None:
        index = self.of_active_lanes(index)
        for lane in range(self.lanes):
            address = self.lane_address(buffer, index, lane, lanewise)
            one = self.out.let(f"extractelement {type_text(buffer.dtype, self.lanes)} {value}, i32 {lane}")
            if self.mask is not None:
                active = self.out.let(f"extractelement <{self.lanes} x i1> {self.mask}, i32 {lane}")
                old = self.read(buffer, address)
                kind = type_text(buffer.dtype)
                one = self.out.let(f"select i1 {active}, {kind} {one}, {kind} {old}")
            self.put(buffer, address, one)

    def blend(self, new: str, old: str, code: str) -> str:
        kind = type_text(code, self.lanes)
        return self.out.let(f"select <{self.lanes} x i1> {self.mask}, {kind} {new}, {kind} {old}")

    # control flow

    def emit_region(self, region: Region, escapes: list[Node]) -> None:
        """All statements of a region; `escapes` are its values that are used after it."""
        if not self.in_kernel and self.weights.region(region) > REGION_LIMIT and len(region.statements) > 1:
            emit_pieces(self, region, escapes)
            return
        for statement in region.statements:
            self.emit_statement(statement)

    def emit_statement(self, statement) -> None:
        if isinstance(statement, Node):
            self.emit_node(statement)
        elif isinstance(statement, Store):
            self.emit_store(statement)
        elif isinstance(statement, Branch):
            self.emit_branch(statement)
        elif isinstance(statement, Call):
            self.emit_call(statement.function)
        elif statement.kind == "while":
            self.emit_while(statement)
        elif statement in self.spread and self.lanes == 1:
            emit_lanes(self, statement, self.spread[statement])
        elif statement.kind == "kernel" and self.lanes == 1 and is_vectorisable(statement):
            emit_kernel(self, statement)
        elif statement.count.op == "const":
            self.emit_for(statement, 0, int(statement.count.attr), 1)
        else:
            self.emit_counted(statement, "0", self.scalar(statement.count), 1)

    def emit_call(self, function: Function) -> None:
        if function in self.mask_slots:
            mask = self.mask or splat_text("true", "b1", self.lanes)
            put_slot(self, self.mask_slots[function], mask, "b1", self.lanes)
        self.out.do(f"call void @{self.symbol}.function{function.number}({self.parameters()})")

    def emit_functions(self) -> None:
        """Functions called from several places; those that they call come later and have slots of their own."""
        for function in reversed(self.program.functions):
            self.slot_top = self.slot_most
            self.mask = None
            if function in self.mask_slots:
                self.mask = get_slot(self, self.mask_slots[function], "b1", self.lanes)
            self.emit_region(function.body, [])
            self.finish_function(f"define internal void @{self.symbol}.function{function.number}({self.parameters()})")
        self.mask = None

    def kind_of(self, node: Node) -> str:
        return type_text(node.dtype, self.lanes if node in self.varying else 1)

    def as_variable(self, node: Node, like: Node) -> str:
        """The text of `node` in the width that the variable `like` has."""
        return self.vector(node) if like in self.varying and self.lanes > 1 else self.scalar(node)

    def variable_operand(self, text: str, node: Node) -> Operand:
        return Operand(text, None if node in self.varying and self.lanes > 1 else 0)

    def emit_once(self, loop: Loop, start: int, step: int) -> None:
        """The only turn of a loop."""
        assert loop.counter is not None
        self.env[loop.counter] = Operand(str(start), 1 if step > 1 else 0)
        for phi, init in zip(loop.phis, loop.inits, strict=True):
            self.env[phi] = self.variable_operand(self.as_variable(init, phi), phi)
        self.emit_region(loop.body, loop.nexts)
        for result, after, phi in zip(loop.results, loop.nexts, loop.phis, strict=True):
            self.env[result] = self.variable_operand(self.as_variable(after, phi), phi)

    def emit_for(self, loop: Loop, start: int, stop: int, step: int, last: int | None = None) -> None:
        """Turns from start to stop, `step` of them at once; no group begins after `last`."""
        if stop - start == step:
            self.emit_once(loop, start, step)
            return
        out, head, end = self.out, self.out.fresh("loop"), self.out.fresh("end")
        inits = [self.as_variable(n, phi) for n, phi in zip(loop.inits, loop.phis, strict=True)]
        before = out.block
        out.do(f"br label %{head}")
        out.start_block(head)
        counter, following = out.fresh(), out.fresh()
        names = [out.fresh() for _ in loop.phis]
        place = len(out.body)
        out.body += [""] * (1 + len(names))
        assert loop.counter is not None
        self.env[loop.counter] = Operand(self._at_most(counter, last, stop - step), 1 if step > 1 else 0)
        for phi, name in zip(loop.phis, names, strict=True):
            self.env[phi] = self.variable_operand(name, phi)
        self.emit_region(loop.body, loop.nexts)
        nexts = [self.as_variable(n, phi) for n, phi in zip(loop.nexts, loop.phis, strict=True)]
        out.do(f"{following} = add nuw nsw i64 {counter}, {step}")
        more = out.let(f"icmp ult i64 {following}, {stop}")
        tail = out.block
        out.do(f"br i1 {more}, label %{head}, label %{end}")
        out.body[place] = f"  {counter} = phi i64 [{start}, %{before}], [{following}, %{tail}]"
        for i, (phi, name) in enumerate(zip(loop.phis, names, strict=True)):
            kind = self.kind_of(phi)
            out.body[place + 1 + i] = f"  {name} = phi {kind} [{inits[i]}, %{before}], [{nexts[i]}, %{tail}]"
        out.start_block(end)
        for result, text, phi in zip(loop.results, nexts, loop.phis, strict=True):
            self.env[result] = self.variable_operand(text, phi)

    def emit_counted(self, loop: Loop, start: str, stop: str, step: int) -> None:
        """Turns from start to stop, `step` of them at once, where these are found at run time; perhaps none."""
        out, head, end = self.out, self.out.fresh("loop"), self.out.fresh("end")
        inits = [self.as_variable(n, phi) for n, phi in zip(loop.inits, loop.phis, strict=True)]
        some = out.let(f"icmp slt i64 {start}, {stop}")
        before = out.block
        out.do(f"br i1 {some}, label %{head}, label %{end}")
        out.start_block(head)
        counter, following = out.fresh(), out.fresh()
        names = [out.fresh() for _ in loop.phis]
        place = len(out.body)
        out.body += [""] * (1 + len(names))
        assert loop.counter is not None
        self.env[loop.counter] = Operand(counter, 1 if step > 1 else 0)
        for phi, name in zip(loop.phis, names, strict=True):
            self.env[phi] = self.variable_operand(name, phi)
        self.emit_region(loop.body, loop.nexts)
        nexts = [self.as_variable(n, phi) for n, phi in zip(loop.nexts, loop.phis, strict=True)]
        out.do(f"{following} = add nuw nsw i64 {counter}, {step}")
        more = out.let(f"icmp slt i64 {following}, {stop}")
        tail = out.block
        out.do(f"br i1 {more}, label %{head}, label %{end}")
        out.body[place] = f"  {counter} = phi i64 [{start}, %{before}], [{following}, %{tail}]"
        for i, (phi, name) in enumerate(zip(loop.phis, names, strict=True)):
            kind = self.kind_of(phi)
            out.body[place + 1 + i] = f"  {name} = phi {kind} [{inits[i]}, %{before}], [{nexts[i]}, %{tail}]"
        out.start_block(end)
        for i, (result, phi) in enumerate(zip(loop.results, loop.phis, strict=True)):
            text = out.let(f"phi {self.kind_of(phi)} [{inits[i]}, %{before}], [{nexts[i]}, %{tail}]")
            self.env[result] = self.variable_operand(text, phi)

    def _at_most(self, counter: str, limit: int | None, highest: int) -> str:
        if limit is None or limit >= highest:
            return counter
        below = self.out.let(f"icmp ult i64 {counter}, {limit}")
        return self.out.let(f"select i1 {below}, i64 {counter}, i64 {limit}")

    def emit_while(self, loop: Loop) -> None:
        out = self.out
        head, body, end = (out.fresh(prefix) for prefix in ("while", "body", "end"))
        inits = [self.as_variable(n, phi) for n, phi in zip(loop.inits, loop.phis, strict=True)]
        outer = self.mask
        flag = type_text("b1", self.lanes)
        all_lanes = outer or splat_text("true", "b1", self.lanes)
        before = out.block
        out.do(f"br label %{head}")
        out.start_block(head)
        names = [out.fresh() for _ in loop.phis]
        place = len(out.body)
        out.body += [""] * (len(names) + 1)
        for phi, name in zip(loop.phis, names, strict=True):
            self.env[phi] = self.variable_operand(name, phi)
        assert loop.cond is not None and loop.test is not None
        self.emit_region(loop.cond, [loop.test, *_used_by(loop.body, loop.nexts)])
        test, was_active = self.operand(loop.test), None
        divergent = test.stride is None
        if divergent:
            was_active = out.fresh()
            active = out.let(f"and {flag} {was_active}, {test.text}")
            self.mask = active
            go = self.any_lane(active)
        else:
            active, go = "", test.text
        out.do(f"br i1 {go}, label %{body}, label %{end}")
        out.start_block(body)
        self.emit_region(loop.body, loop.nexts)
        nexts = [self.as_variable(n, phi) for n, phi in zip(loop.nexts, loop.phis, strict=True)]
        if divergent:
            nexts = [
                self.blend(n, name, phi.dtype) if phi in self.varying else n
                for n, name, phi in zip(nexts, names, loop.phis, strict=True)
            ]
        last = out.block
        out.do(f"br label %{head}")
        for i, (phi, name) in enumerate(zip(loop.phis, names, strict=True)):
            out.body[place + i] = f"  {name} = phi {self.kind_of(phi)} [{inits[i]}, %{before}], [{nexts[i]}, %{last}]"
        if divergent:
            out.body[place + len(names)] = f"  {was_active} = phi {flag} [{all_lanes}, %{before}], [{active}, %{last}]"
        self.mask = outer
        out.start_block(end)
        for result, name, phi in zip(loop.results, names, loop.phis, strict=True):
            self.env[result] = self.variable_operand(name, phi)

    def any_lane(self, mask: str) -> str:
        bits = self.out.let(f"bitcast <{self.lanes} x i1> {mask} to i{self.lanes}")
        return self.out.let(f"icmp ne i{self.lanes} {bits}, 0")

    def emit_branch(self, branch: Branch) -> None:
        if self.operand(branch.selector).stride == 0:
            self.emit_uniform_branch(branch)
        else:
            self.emit_divergent_branch(branch)

    def emit_uniform_branch(self, branch: Branch) -> None:
        out = self.out
        labels = [out.fresh("case") for _ in branch.regions]
        end = out.fresh("end")
        kind = type_text(branch.selector.dtype)
        selector = self.scalar(branch.selector)
        cases = " ".join(f"{kind} {i}, label %{label}" for i, label in enumerate(labels[:-1]))
        out.do(f"switch {kind} {selector}, label %{labels[-1]} [{cases}]")
        incoming: list[list[str]] = [[] for _ in branch.results]
        for label, region, row in zip(labels, branch.regions, branch.yields, strict=True):
            out.start_block(label)
            self.emit_region(region, row)
            values = [self.as_variable(n, result) for n, result in zip(row, branch.results, strict=True)]
            for texts, value in zip(incoming, values, strict=True):
                texts.append(f"[{value}, %{out.block}]")
            out.do(f"br label %{end}")
        out.start_block(end)
        for result, texts in zip(branch.results, incoming, strict=True):
            self.env[result] = self.variable_operand(out.let(f"phi {self.kind_of(result)} {', '.join(texts)}"), result)

    def emit_divergent_branch(self, branch: Branch) -> None:
        """Every region that some lane wants runs under the mask of its lanes; results are selected."""
        out, outer = self.out, self.mask
        selector, flag = self.vector(branch.selector), type_text("b1", self.lanes)
        kind = type_text(branch.selector.dtype, self.lanes)
        chosen = [""] * len(branch.results)
        for number, (region, row) in enumerate(zip(branch.regions, branch.yields, strict=True)):
            here = out.let(f"icmp eq {kind} {selector}, {splat_text(str(number), branch.selector.dtype, self.lanes)}")
            self.mask = here if outer is None else out.let(f"and {flag} {here}, {outer}")
            values = self._guarded_region(region, row, branch.results)
            for i, (value, result) in enumerate(zip(values, branch.results, strict=True)):
                of = type_text(result.dtype, self.lanes)
                chosen[i] = value if number == 0 else out.let(f"select {flag} {here}, {of} {value}, {of} {chosen[i]}")
        self.mask = outer
        for result, text in zip(branch.results, chosen, strict=True):
            self.env[result] = Operand(text, None)

    def _guarded_region(self, region: Region, row: list[Node], results: list[Node]) -> list[str]:
        """A region that is skipped if no lane is active; its values, or poison for lanes that do not want them."""
        out = self.out
        assert self.mask is not None
        here, run, end = out.block, out.fresh("lanes"), out.fresh("end")
        go = self.any_lane(self.mask)
        out.do(f"br i1 {go}, label %{run}, label %{end}")
        here = out.block
        out.start_block(run)
        self.emit_region(region, row)
        values = [self.vector(n) for n in row]
        last = out.block
        out.do(f"br label %{end}")
        out.start_block(end)
        merged = []
        for value, result in zip(values, results, strict=True):
            kind = type_text(result.dtype, self.lanes)
            merged.append(out.let(f"phi {kind} [zeroinitializer, %{here}], [{value}, %{last}]"))
        return merged

    # whole functions

    def width_of(self, node: Node) -> int:
        return self.lanes if node in self.varying else 1

    def as_operand(self, text: str, stride: int | None) -> Operand:
        return Operand(text, stride)

    def piece_name(self) -> str:
        self._pieces += 1
        return f"{self.symbol}.piece{self._pieces}"

    def parameters(self) -> str:
        alone = "ptr %inputs, ptr %outputs, ptr %workspace"
        return alone if self.batch_lanes == 1 else alone + ", i64 %first, i64 %stop"

    def begin_function(self) -> tuple:
        outside = (self.out, self.env, self.splats, self.pointers)
        self.out, self.env, self.splats, self.pointers = Lines(), {}, {}, {}
        return outside

    def resume_function(self, outside: tuple) -> None:
        self.out, self.env, self.splats, self.pointers = outside

    def module(self) -> str:
        """The text of the module: the function, what it calls, and its constant tables."""
        if self.batch_lanes > 1:
            self.emit_batch()
        else:
            self.emit_region(self.program.root, [])
            self.finish_function(f"define void @{self.symbol}({self.parameters()})")
        self.emit_functions()
        self.workspace_bytes = -(-max(self.slot_most, SLOT_BYTES) // ALIGNMENT) * ALIGNMENT
        tables = [self.constant_table(b) for b in self.program.constants if self._uses(b)]
        declarations = [
            d for name, d in self.operations.declarations.items() if name not in self.operations.math_module.globals
        ]
        math = str(self.operations.math_module)
        return "\n".join([math, *declarations, *tables, *self.functions])

    def _uses(self, buffer: Buffer) -> bool:
        name = f"@{self.symbol}.constant{buffer.number}"
        return any(name in text for text in self.functions)

    def constant_table(self, buffer: Buffer) -> str:
        assert buffer.data is not None
        code = "u1" if buffer.dtype == "b1" else buffer.dtype
        kind = type_text(code)
        items = ", ".join(f"{kind} {constant_text(x, code)}" for x in buffer.data.reshape(-1))
        name = f"@{self.symbol}.constant{buffer.number}"
        return f"{name} = internal constant [{buffer.size} x {kind}] [{items}], align {ALIGNMENT}"

    def finish_function(self, header: str) -> None:
        out = self.out
        text = [
            f"{header} nounwind {{",
            "entry:",
            *out.entry,
            "  br label %start",
            "start:",
            *out.body,
            "  ret void",
            "}",
        ]
        self.functions.append("\n".join(text))
        self.out, self.env, self.splats, self.pointers = Lines(), {}, {}, {}

    def emit_batch(self) -> None:
        """The body for one group of lanes, and the loop over groups."""
        parameters = self.parameters()
        self.emit_region(self.program.root, [])
        self.finish_function(f"define internal void @{self.symbol}.group({parameters})")
        self.functions.append(
            f"""define void @{self.symbol}(ptr %inputs, ptr %outputs, ptr %workspace, i64 %start, i64 %stop) nounwind {{
entry:
  %some = icmp slt i64 %start, %stop
  br i1 %some, label %loop, label %end
loop:
  %first = phi i64 [%start, %entry], [%following, %loop]
  call void @{self.symbol}.group({parameters})
  %following = add i64 %first, {self.batch_lanes}
  %more = icmp slt i64 %following, %stop
  br i1 %more, label %loop, label %end
end:
  ret void
}}"""
        )


def _steps_text(start: int, step: int, code: str, lanes: int) -> str:
    """The vector start, start + step, ..."""
    return f"<{', '.join(f'{type_text(code)} {start + i * step}' for i in range(lanes))}>"


def _used_by(region: Region, also: list[Node]) -> list[Node]:
    used = list(also)
    for statement in walk(region):
        if isinstance(statement, Node):
            used += statement.args
    return used
