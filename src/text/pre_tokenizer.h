// Cuts a text into the pieces that merges may not cross, as the model's tokenizer.json describes it.
// The patterns of GPT-2, Llama-3/cl100k and Qwen2 have hand-written scanners; any other one runs in PCRE2.
// Immutable after create and shared by all threads.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tandem/tokenizer.h"

namespace tandem {

class Regex;  // a compiled PCRE2 pattern

class PreTokenizer final {
 public:
  // Fails when a pattern does not compile; the error names the pattern and the place.
  static absl::StatusOr<PreTokenizer> create(std::span<const PreTokenizerStep> steps);
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // Appends the pieces of `text`, in order; joined they are `text`. Ill-formed UTF-8 is allowed: each
  // ill-formed unit counts as an unassigned character (scanners) or as a piece of its own (PCRE2).
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  // Given a text and the position where a piece begins, where it ends.
  using Scanner = std::size_t (*)(std::string_view text, std::size_t begin);
  struct Step {
    Scanner scanner = nullptr;
    std::unique_ptr<const Regex> regex;  // where there is no scanner
  };

  PreTokenizer();
  void split_from(std::size_t step_idx, std::string_view text, std::vector<std::string_view>& pieces) const;

  std::vector<Step> steps_;
};

}  // namespace tandem
