// Text to token ids and back. TokenizerSpec is what a model file says, whatever its format; Tokenizer is
// built from it once, immutable and shared by all threads. Streaming and stop strings: text/text_stream.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/types.h"

namespace tandem {

enum class TokenKind : std::uint8_t {
  kNormal,       // made by merges; text in the byte-level alphabet ("Ġthe")
  kControl,      // special: matched only where the template put it, not shown in output; literal text
  kUserDefined,  // added but not special: matched anywhere, shown in output; literal text
  kUnused,
};

// One step of pre-tokenisation, applied in order, each to every piece of the one before.
struct PreTokenizerStep {
  enum class Kind : std::uint8_t {
    kSplit,             // by `pattern` (Hugging Face regex syntax), behaviour "Isolated"
    kIndividualDigits,  // every \p{N} code point alone
  };
  Kind kind = Kind::kSplit;
  std::string pattern;
};

// GPT-2's pattern, what a ByteLevel pre-tokenizer with use_regex splits by.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

enum class Normalizer : std::uint8_t { kNone, kNfc };

// Byte-level BPE as GGUF metadata or tokenizer.json describes it.
struct TokenizerSpec {
  std::vector<std::string> tokens;  // by id
  std::vector<TokenKind> kinds;     // by id
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::vector<PreTokenizerStep> pre_tokenizer;
  Normalizer normalizer = Normalizer::kNone;
  bool ignore_merges = false;     // a piece that is itself a token is taken whole
  bool add_prefix_space = false;
  bool add_bos = false;           // for raw prompts; a rendered template never gets one
  bool add_eos = false;
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<TokenId> unk;
  std::vector<TokenId> end_of_generation;  // every id that ends a turn, eos included
  std::string chat_template;               // Jinja; empty when the model has none
};

// Bytes [begin, end) of a text.
struct TextSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Ids of `text`. Control tokens are recognised except where they overlap one of `user_spans` (sorted,
  // disjoint): text that came from a user never becomes one. No begin or end token is added.
  virtual std::vector<TokenId> encode(std::string_view text, std::span<const TextSpan> user_spans) const = 0;
  // Ids of a raw prompt, whose author stands in for the template: control tokens are recognised everywhere. With the
  // begin/end tokens that the model asks for; a begin token that the text has itself is not doubled.
  virtual std::vector<TokenId> encode_prompt(std::string_view text) const = 0;
  // The bytes that a token stands for, not necessarily whole characters. Empty for an unknown id.
  virtual std::string_view token_bytes(TokenId id) const = 0;
  virtual TokenKind kind(TokenId id) const = 0;
  virtual bool ends_generation(TokenId id) const = 0;
  virtual TokenId vocab_size() const = 0;  // ids in [0, vocab_size) are valid
  virtual const TokenizerSpec& spec() const = 0;
};

}  // namespace tandem
