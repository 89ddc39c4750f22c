"""A Kernel as text a person can read: parameters, index space, statements. For ``show --stage
kernel`` only.

May import the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusec.codegen.expr import position_text
from fusec.codegen.kernel import (
    Access,
    Accumulate,
    AddColumns,
    Apply,
    Combine,
    Comment,
    Config,
    Convert,
    Expr,
    Fetch,
    Forget,
    Form,
    Keep,
    Kernel,
    Let,
    Literal,
    Load,
    Masked,
    Pieces,
    Recall,
    Reduce,
    Ref,
    Rescale,
    Start,
    Stmt,
    Store,
    SumBoth,
    Sweep,
)
from fusec.codegen.writer import Writer


def describe(kernel: Kernel) -> str:
    """The whole kernel, one statement a line."""
    writer = Writer()
    config = kernel.config
    with writer.block(f"kernel {kernel.name}: {kernel.form.value}"):
        for pointer in kernel.pointers:
            writer.line(
                f"buffer {pointer.name}: {pointer.storage.name}"
                f"{', written' if pointer.written else ''}"
            )
        for number in kernel.numbers:
            writer.line(f"number {number.name}: {number.dtype.name}")
        for size in kernel.sizes:
            writer.line(f"size {size.name} = {' '.join(map(str, size.source))}")
        writer.line(
            f"tile {config.block_rows} x {config.block_cols}, {config.warps} warps, "
            f"{'resident' if config.resident else 'looped'}{', even' if config.even else ''}"
            f"{', lanes along rows' if config.lanes_along_rows else ''}"
            f"{', read again' if config.reread else ''}"
            f"{', in parts' if config.shared else ''}"
        )
        for variable in kernel.variables:
            writer.line(f"index {variable.name} = {position_text(variable, '//')}")
        apart = _apart_text(kernel)
        if apart:
            writer.line(apart)
        if kernel.divided and config.fold > 1:
            writer.line(f"{config.fold} columns, one behind the other in memory, taken as one")
        if kernel.waits:
            writer.line("begins while the kernel before it ends, and waits for it")
        if not apart and (config.lanes > 1 or config.vectors > 1):
            writer.line(
                f"vectors of {config.lanes} lanes, {config.vectors} for each of {config.threads} "
                f"threads"
                + (f", a row shared by {config.cluster} blocks" if config.cluster > 1 else "")
            )
        turns = turns_text(config, [stage.access.buffer for stage in kernel.staged])
        if turns:
            writer.line(turns)
        _body(kernel.body, writer)
    return writer.text()


def _apart_text(kernel: Kernel) -> str:
    """Which tiles of an elementwise kernel go without masks; empty if none does."""
    if not kernel.config.apart or kernel.form is Form.ROWS:
        return ""
    if kernel.form is Form.FLAT:
        return "all tiles but the last without masks"
    text = "all tiles inside a row without masks"
    if kernel.start is None:
        return text
    begin = kernel.start.buffer.removesuffix("_ptr")
    return f"{text}, the first begins at a vector of {kernel.config.lanes} in {begin}"


def turns_text(config: Config, kept: Sequence[str]) -> str:
    """How blocks that stay go from row to row; empty for others."""
    if not config.turns:
        return ""
    text = f"blocks stay, take {config.block_rows} rows at a time and keep {', '.join(kept)}"
    if config.ahead:
        text += f"; of the next row {config.ahead} vectors of each thread come meanwhile"
    return text


def _body(statements: tuple[Stmt, ...], writer: Writer) -> None:
    for statement in statements:
        if isinstance(statement, Pieces):
            with writer.block("for each piece of the row:"):
                _body((statement.first, statement.second), writer)
            for joint in statement.joints:
                writer.line(f"{', '.join(joint.results)} = those of the pieces, joined")
        elif isinstance(statement, Sweep):
            for accumulator in statement.accumulators:
                writer.line(
                    f"{accumulator.lanes} : {accumulator.accumulate.name}"
                    f" = {accumulator.identity.value}"
                )
            order = ", the last first" if statement.backwards else ""
            with writer.block(f"for each tile of the row{order}:"):
                _body(statement.body, writer)
            for accumulator in statement.accumulators:
                writer.line(f"{accumulator.name} = {accumulator.op.name} of {accumulator.lanes}")
        else:
            writer.line(_statement(statement))


def _statement(statement: Stmt) -> str:
    match statement:
        case Comment(text=text):
            return f"# {text}"
        case Let(name=name, value=value) | Start(name=name, value=value):
            return f"{name} = {_text(value)}"
        case Load(name=name, access=access, guards=guards):
            condition = f" if {' and '.join(_text(g) for g in guards)}" if guards else ""
            return f"{name} = load {_address(access)}{condition}"
        case Store(access=access, value=value, storage=storage):
            return f"store {_address(access)} = {_text(value)} as {storage.name}"
        case Reduce(name=name, op=op, value=value):
            return f"{name} = {op.name} {_text(value)}"
        case SumBoth(first=first, second=second):
            return f"{first.name}, {second.name} = sum {_text(first.value)}, {_text(second.value)}"
        case Combine(name=name, op=op, access=access):
            return f"{name} = {op.name} of the parts at {_address(access)}"
    return _running(statement)


def _running(statement: Stmt) -> str:
    """A statement that remembers something beyond a tile or a row."""
    match statement:
        case Accumulate(accumulator=accumulator, value=value):
            return f"{accumulator.lanes} {accumulator.op.name}= {_text(value)}"
        case AddColumns(sums=sums, value=value):
            return f"{sums.lanes} sum= {_text(value)}, over the rows of the program"
    return _between_sweeps(statement)


def _between_sweeps(statement: Stmt) -> str:
    """What a sweep leaves for another, or runs together with it."""
    match statement:
        case Fetch(buffer=buffer, access=access):
            return f"{buffer} = fetch {_address(access)}"
        case Forget(buffer=buffer):
            return f"forget what was made of {buffer}"
        case Rescale(largest=largest, total=total, value=value):
            return f"{largest.lanes}, {total.lanes} = online max and sum of exp {_text(value)}"
        case Keep(buffer=buffer, value=value):
            return f"keep {buffer} = {_text(value)}"
        case Recall(name=name, buffer=buffer):
            return f"{name} = recall {buffer}"
    raise AssertionError(statement)


def _address(access: Access) -> str:
    terms = [t.variable if t.stride == 1 else f"{t.variable} * {t.stride}" for t in access.terms]
    return f"{access.buffer}[{' + '.join(terms)}]"


def _text(expression: Expr) -> str:
    if isinstance(expression, Ref):
        return expression.name
    if isinstance(expression, Literal):
        return f"{expression.value}"
    if isinstance(expression, Convert):
        through = f" through {expression.through.name}" if expression.through else ""
        return f"{expression.dtype.name}({_text(expression.arg)}{through})"
    if isinstance(expression, Masked):
        return f"masked({_text(expression.arg)}, {expression.identity.value})"
    assert isinstance(expression, Apply)
    return f"{expression.op.name}({', '.join(_text(a) for a in expression.args)})"
