// The tensors of a Hugging Face folder, from one .safetensors file or from the shards that its index lists. Opening
// fails unless every listed shard and tensor is there.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/handles.h"
#include "model/safetensors.h"

namespace tandem {

struct HfTensors {
  std::vector<SafetensorsTensor> tensors;
  std::vector<Mapping> mappings;
};

// model.safetensors, else the shards of model.safetensors.index.json, else the only *.safetensors file. Every
// shard has every tensor that the index places in it; a tensor the index does not place there is not taken.
absl::StatusOr<HfTensors> open_hf_tensors(const std::string& folder);

}  // namespace tandem
