// Which ids end a turn: the union of what every source says, so that no generation runs on into an invented
// user turn because one file was silent. Also the finishing step of both tokenizer readers.
#pragma once

#include <span>

#include "tandem/tokenizer.h"

namespace tandem {

// Sets spec.end_of_generation (sorted, distinct) to spec.eos, `named` and every control token whose text is one
// that chat models end a turn or a document with. An id that is no token is kept; OpenedModel refuses it.
// The named ids and spec.bos become control tokens where they were only user-defined.
void set_end_of_generation(TokenizerSpec& spec, std::span<const TokenId> named);

}  // namespace tandem
