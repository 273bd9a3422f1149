// The one ModelFile: what a format's reader gathered, checked as a whole. It owns the mappings its tensors
// point into. Immutable after create(), so any thread may read it.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/handles.h"
#include "model/spec.h"
#include "tandem/model.h"

namespace tandem {

struct ModelParts {
  ModelSpec spec;
  TokenizerSpec tokenizer;
  std::vector<NamedTensor> tensors;     // canonical names, any order
  std::span<const TensorRename> table;  // of a family, static: what the file calls them
  std::vector<Mapping> mappings;        // the bytes behind them
};

class OpenedModel final : public ModelFile {
 public:
  // Fails when the spec is out of range, a tensor is missing, there twice, unknown to the spec or of the wrong
  // shape, or the tokenizer has more ids than the model.
  static absl::StatusOr<std::unique_ptr<ModelFile>> create(ModelParts parts);

  const ModelSpec& spec() const override { return parts_.spec; }
  const TokenizerSpec& tokenizer() const override { return parts_.tokenizer; }
  std::span<const NamedTensor> tensors() const override { return parts_.tensors; }
  const NamedTensor* find(std::string_view name) const override;

 private:
  explicit OpenedModel(ModelParts parts) : parts_(std::move(parts)) {}
  ModelParts parts_;  // tensors sorted by name
};

}  // namespace tandem
