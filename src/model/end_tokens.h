// Finds the token ids that end a generation. A model's files name them in several places, and any one of them may be
// incomplete; the result is the union of all, so that generation never runs into an invented user turn. Both
// tokenizer readers call this last.
#pragma once

#include <span>

#include "tandem/tokenizer.h"

namespace tandem {

// Sets spec.end_of_generation (sorted, distinct) to spec.eos, `named` and every control token whose text is one
// that chat models end a turn or a document with. An id that is no token is kept; OpenedModel refuses it.
// The named ids and spec.bos become control tokens where they were only user-defined.
void set_end_of_generation(TokenizerSpec& spec, std::span<const TokenId> named);

}  // namespace tandem
