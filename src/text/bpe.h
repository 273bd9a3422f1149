// Byte-level BPE: the Tokenizer of tandem/tokenizer.h. A text is cut at its added tokens, what lies between is
// normalised, pre-tokenised (text/pre_tokenizer.h) and merged (text/merges.h).
// Text is never refused: ill-formed UTF-8 is encoded byte by byte and comes back from token_bytes unchanged, but
// for bytes that the vocabulary has no token for.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "tandem/tokenizer.h"

namespace tandem {

// Checks all of `spec`: the error names the field, the token or the merge at fault.
// With add_prefix_space a space is put before every stretch between added tokens that does not begin with one.
absl::StatusOr<std::unique_ptr<Tokenizer>> create_tokenizer(TokenizerSpec spec);

}  // namespace tandem
