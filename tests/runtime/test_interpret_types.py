"""Types that Triton's interpreter is given again are those that it would have made."""

import subprocess
import sys
import textwrap

import pytest

from fusec import settings

pytest.importorskip("triton")

CODE = """
    import itertools
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter
    from fusec.runtime import interpret_types

    semantic = interpreter.interpreter_semantic
    kinds = (tl.int1, tl.int32, tl.float32, tl.bfloat16, tl.pointer_type(tl.float32))
    shapes = ([8], [1, 4], [8, 1], [8, 4], [2, 8, 1], [16])

    def tensor(kind, shape):
        data = np.arange(np.prod(shape or 1)).astype(interpreter._get_np_dtype(kind))
        handle = interpreter.TensorHandle(data.reshape(shape or 1), kind)
        return tl.tensor(handle, tl.block_type(kind, shape) if shape else kind)

    def described(value):
        kind, data = value.type, value.handle.data
        facts = [kind, kind.scalar, value.dtype, value.shape, value.numel, len(value.shape)]
        if kind.is_block():
            facts += [kind.name, kind.numel, kind.shape, kind == kind.scalar]
        return [str(fact) for fact in facts], str(data.dtype), data.tolist()

    def joined(left, right):
        try:
            return [described(one) for one in semantic.broadcast_impl_value(left, right)]
        except (ValueError, TypeError, AttributeError) as error:
            return str(error)

    def everything():
        tensors = [tensor(kind, shape) for kind in kinds for shape in (*shapes, [])]
        pairs = itertools.product([tensor(tl.int32, s) for s in (*shapes, [])], repeat=2)
        lengths = [tl.tuple(shape) for shape in shapes]
        return (
            [described(one) for one in tensors],
            [described(semantic.cast(one, tl.float32)) for one in tensors[:14]],
            [joined(left, right) for left, right in pairs],
            [str(a == b) for a, b in itertools.product(lengths, [*lengths, *shapes])],
            [str(interpreter._get_np_dtype(one.type)) for one in tensors],
        )

    expected = everything()
    interpret_types.install()
    for turn in range(3):
        for found, wanted in zip(everything(), expected, strict=True):
            assert len(found) == len(wanted) and len(set(map(str, wanted))) > 1
            for one, other in zip(found, wanted, strict=True):
                assert one == other, (one, other)
    assert any(isinstance(pair, str) for pair in expected[2])  # shapes that do not fit together
    assert tl.block_type(tl.int32, [8, 4]).of_tensors  # and no tensor of that type is made anew
    first, second = tensor(tl.int32, [8]), tensor(tl.int32, [8])
    assert first.handle is not second.handle and first.shape is second.shape
    print("equal")
"""


def test_types_are_as_before() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CODE)],
        env=settings.child_environment(TRITON_INTERPRET="1"),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (finished.stdout, finished.stderr) == ("equal\n", "")
