// The one header that generated C++ kernels include: scalar functions written so that the loop
// around them vectorises, storage types, casts and the fixed order in which lanes are combined.
//
// No library headers but <stddef.h> and <stdint.h>: a kernel must compile in a fraction of a second, and
// <cmath> alone costs more than the kernel itself. Library functions are reached as GCC builtins.
#ifndef FUSEC_H
#define FUSEC_H

#include "fusec_base.h"
#include "fusec_types.h"
#include "fusec_math.h"
#include "fusec_fast.h"
#include "fusec_trig.h"
#include "fusec_arith.h"
#include "fusec_rows.h"
#include "fusec_pieces.h"
#include "fusec_turn.h"

#endif
