// Reads a GGUF file as a model: metadata becomes ModelSpec and TokenizerSpec, tensors get canonical names
// (model/spec.h). Each supported architecture is one row of a table. The container itself is read by model/gguf.h.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/gguf.h"
#include "tandem/model.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<ModelFile>> open_gguf_model(const std::string& path);

// The tokenizer.ggml.* part. Byte-level BPE ("gpt2") with a known pre-tokenizer; anything else is refused by name.
absl::StatusOr<TokenizerSpec> read_gguf_tokenizer(const GgufFile& file);

}  // namespace tandem
