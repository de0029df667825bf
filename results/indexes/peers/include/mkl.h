// What XIndex includes of Intel's MKL. It calls LAPACKE_dgels only for keys of
// several dimensions; ours have one.
#pragma once

#include <stdlib.h>

enum { LAPACK_ROW_MAJOR };

inline int LAPACKE_dgels(int, char, int, int, int, double*, int, double*, int) { abort(); }
