"""Which repeated calls the compiled launcher takes over from Python.

May import ``runtime.launcher``, ``runtime.addresses``, ``runtime.arguments`` and below.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from fusec.runtime import launcher
from fusec.runtime.addresses import reaches

if TYPE_CHECKING:
    from fusec.runtime.arguments import Call
    from fusec.runtime.prepared import Prepared


def hand_over(table: Any, prepared: Prepared, call: Call, args: tuple[Any, ...], out: Any) -> Any:
    """``table``, which knows calls like this one from now on where the launcher can make them; a
    new one where there was none (None) and this call can be in it.
    """
    module = launcher.note_repeated()
    if module is None or call.numpy or any(map(operator.is_not, call.values, args)):
        return table
    if call.outs is not None and not call.direct:
        return table
    plan = launcher.plan_of(prepared, len(args), call.outs is not None)
    if plan is None:
        return table
    table = module.Table() if table is None else table
    if call.outs is None:
        table.remember(args, plan)
    else:
        bytes_of = reaches((*args, *call.outs))
        # A result may lie where an input lies that is taken for it: that meets nothing.
        met = (0 if call.fresh or k in call.taken else n for k, n in enumerate(bytes_of))
        table.remember(args, plan, out, tuple(met))
    return table
