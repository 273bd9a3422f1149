// A GGUF file as a model: its metadata as ModelSpec and TokenizerSpec, its tensors under canonical names.
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
