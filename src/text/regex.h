// A pre-tokenisation pattern in PCRE2, with Hugging Face's meaning where the two engines differ.
// Immutable after create and shared by all threads.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;

namespace tandem {

class Regex final {
 private:
  struct Key {};

 public:
  static absl::StatusOr<std::unique_ptr<const Regex>> create(std::string_view pattern);

  // Appends the matches in `text` and what lies between them, in order. Where matching hits its limits
  // (a pattern that backtracks without bound) the rest of the text is one piece.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

  Regex(Key, pcre2_real_code_8* code, pcre2_real_match_context_8* limits) : code_(code), limits_(limits) {}

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  struct FreeLimits {
    void operator()(pcre2_real_match_context_8* limits) const;
  };

  void split_valid(std::string_view text, std::vector<std::string_view>& pieces) const;

  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
  std::unique_ptr<pcre2_real_match_context_8, FreeLimits> limits_;
};

}  // namespace tandem
