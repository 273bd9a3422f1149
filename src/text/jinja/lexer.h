// Splits a template's source into tokens, with Jinja's rules for white space as Hugging Face sets them:
// trim_blocks and lstrip_blocks on, the last newline dropped. Runs once per model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/jinja/value.h"

namespace tandem::jinja {

enum class TokenType : std::uint8_t {
  kData,
  kPrintBegin,
  kPrintEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kNumber,
  kSymbol,  // operators and brackets
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  int line = 0;
  std::string text;  // as written; unescaped for kString
  Value number;      // of kNumber
};

absl::StatusOr<std::vector<Token>> tokenize(std::string_view source);

// An error of the template itself, naming the line.
absl::Status template_error(int line, std::string_view what);

}  // namespace tandem::jinja
