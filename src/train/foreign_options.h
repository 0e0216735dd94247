// What other training programs call their settings, and what each is here.
//
// One table for error messages ("cp_size" is parallel.sp_size here), for docs/config.md and for the tables of
// docs/migrating.md. Thread-safety: pure functions.
#pragma once

#include <string>

#include "base/option_table.h"

namespace ithaca {

// Puts the names of Transformers' Trainer, Accelerate, TRL, ms-swift, axolotl, DeepSpeed, LLaMA-Factory and
// Megatron-LM into the catalog.
void add_foreign_options(OptionCatalog& catalog);

// `page` with the rows of every table between "<!-- names: PROGRAM -->" and "<!-- end of names -->" written anew from
// the catalog. Throws InputError when a mark has no end, or names a program that has no row.
std::string with_foreign_tables(const std::string& page, const OptionCatalog& catalog);

}  // namespace ithaca
