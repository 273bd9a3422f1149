#include "model/opened_model.h"

#include <algorithm>
#include <utility>

#include "fmt/core.h"

namespace tandem {
namespace {

absl::Status check_tokenizer(const TokenizerSpec& tokenizer, const ModelSpec& spec) {
  const std::size_t count = tokenizer.tokens.size();
  if (count == 0) return absl::InvalidArgumentError("the tokenizer has no tokens");
  if (count > static_cast<std::size_t>(spec.vocab_size)) {
    return absl::InvalidArgumentError(
        fmt::format("the tokenizer has {} tokens, the model's embedding only {} rows; the files do not belong together",
                    count, spec.vocab_size));
  }
  TANDEM_CHECK(tokenizer.kinds.size() == count, "a reader gives every token a kind");
  const auto check_id = [&](std::string_view what, std::optional<TokenId> id) -> absl::Status {
    if (!id || (*id >= 0 && static_cast<std::size_t>(*id) < count)) return absl::OkStatus();
    return absl::InvalidArgumentError(fmt::format("{} token id {} is not one of the tokenizer's {}", what, *id, count));
  };
  TANDEM_TRY(check_id("begin", tokenizer.bos));
  TANDEM_TRY(check_id("end", tokenizer.eos));
  TANDEM_TRY(check_id("unknown", tokenizer.unk));
  for (const TokenId id : tokenizer.end_of_generation) TANDEM_TRY(check_id("end-of-turn", id));
  if (tokenizer.add_bos && !tokenizer.bos) {
    return absl::InvalidArgumentError("the tokenizer asks for a begin token on every prompt and names none");
  }
  if (tokenizer.add_eos && !tokenizer.eos) {
    return absl::InvalidArgumentError("the tokenizer asks for an end token on every prompt and names none");
  }
  return absl::OkStatus();
}

}  // namespace

const NamedTensor* OpenedModel::find(std::string_view name) const { return find_tensor(parts_.tensors, name); }

absl::StatusOr<std::unique_ptr<ModelFile>> OpenedModel::create(ModelParts parts) {
  TANDEM_TRY(check_spec(parts.spec));
  std::ranges::sort(parts.tensors, {}, &NamedTensor::name);
  const auto twice = std::ranges::adjacent_find(parts.tensors, {}, &NamedTensor::name);
  if (twice != parts.tensors.end()) {
    return absl::InvalidArgumentError(fmt::format("tensor {} is there twice", twice->name));
  }
  std::unique_ptr<OpenedModel> model(new OpenedModel(std::move(parts)));
  TANDEM_TRY(check_tensors(model->spec(), model->tensors(), model->parts_.table));
  TANDEM_TRY(check_tokenizer(model->tokenizer(), model->spec()));
  return model;
}

}  // namespace tandem
