// A Hugging Face folder as a model: config.json and generation_config.json, tokenizer.json and its companions,
// and the tensors of model.safetensors or of the shards that model.safetensors.index.json lists.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tandem/model.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<ModelFile>> open_hf_model(const std::string& folder);

// What the model's configuration says about tokens, for where the tokenizer's own files are silent.
struct ConfigTokens {
  std::optional<TokenId> bos;
  std::vector<TokenId> ends;  // generation_config.json's first, then config.json's
};

// tokenizer.json, tokenizer_config.json and chat_template.jinja. Byte-level BPE; a setting the tokenizer does not
// compute is refused by name.
// Ids lie below `vocab_size`.
absl::StatusOr<TokenizerSpec> read_hf_tokenizer(const std::string& folder, const ConfigTokens& config,
                                                std::int32_t vocab_size);

}  // namespace tandem
