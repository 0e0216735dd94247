// Matrix products of the CPU backend, through BLAS.
// Thread-safety: pure functions; any number of threads at the same time.
#pragma once

#include "backend/operations.h"

namespace ithaca::cpu {

// Throws ContractError when an extent or a row stride does not fit into BLAS's 32-bit integers; products with more
// elements than that are fine.
void check_blas_sizes(const Gemm& arguments);

// Checked arguments (backend/check.h and check_blas_sizes), float32.
void gemm(const Gemm& arguments);

// Sets BLAS to one thread per caller, and compares products of small and blocked sizes in all transpositions with plain
// loops. Throws ConfigurationError when they differ. The first call of a process does the work; later ones repeat its
// verdict.
void verify_blas();

}  // namespace ithaca::cpu
