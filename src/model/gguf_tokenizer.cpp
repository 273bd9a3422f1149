#include <algorithm>

#include "fmt/core.h"
#include "fmt/ranges.h"
#include "model/end_tokens.h"
#include "model/gguf_model.h"
#include "model/spec.h"

namespace tandem {
namespace {

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// What tokenizer.ggml.pre stands for: the file names the rules, it does not contain them.
struct PreTokenizer {
  std::string_view name;
  bool individual_digits;
  std::string_view pattern;
  bool ignore_merges;
  bool add_bos;  // where the file does not say
  Normalizer normalizer;
};

constexpr PreTokenizer kPreTokenizers[] = {
    {"default", false, kGpt2Pattern, false, false, Normalizer::kNone},
    {"gpt-2", false, kGpt2Pattern, false, false, Normalizer::kNone},
    {"smollm", true, kGpt2Pattern, false, false, Normalizer::kNone},
    {"starcoder", true, kGpt2Pattern, false, false, Normalizer::kNone},
    {"refact", true, kGpt2Pattern, false, false, Normalizer::kNone},
    {"llama-bpe", false, kLlama3Pattern, true, true, Normalizer::kNone},
    {"llama3", false, kLlama3Pattern, true, true, Normalizer::kNone},
    {"llama-v3", false, kLlama3Pattern, true, true, Normalizer::kNone},
    {"qwen2", false, kQwen2Pattern, false, false, Normalizer::kNfc},
};

class TokenizerReader final {
 public:
  explicit TokenizerReader(const GgufFile& file) : file_(file) {}

  absl::StatusOr<TokenizerSpec> read() {
    TANDEM_TRY(model());
    TANDEM_TRY(pre_tokenizer());
    TANDEM_TRY(tokens());
    TANDEM_TRY(merges());
    TANDEM_TRY(settings());
    return std::move(spec_);
  }

 private:
  absl::Status fail(std::string_view what) const {
    return absl::InvalidArgumentError(fmt::format("{}: {}", file_.path(), what));
  }
  absl::Status missing(std::string_view key) const { return fail(fmt::format("metadata \"{}\" is missing", key)); }

  absl::Status model() const {
    TANDEM_ASSIGN(const auto model, file_.text("tokenizer.ggml.model"));
    if (!model) return missing("tokenizer.ggml.model");
    if (*model == "gpt2") return absl::OkStatus();
    return absl::UnimplementedError(fmt::format(
        "{}: tokenizer model \"{}\" is not supported; supported: gpt2 (byte-level BPE)", file_.path(), *model));
  }

  absl::Status pre_tokenizer() {
    TANDEM_ASSIGN(const auto stated, file_.text("tokenizer.ggml.pre"));
    const std::string_view name = stated.value_or("default");
    const auto pre = std::ranges::find(kPreTokenizers, name, &PreTokenizer::name);
    if (pre == std::end(kPreTokenizers)) {
      std::vector<std::string_view> known;
      for (const PreTokenizer& each : kPreTokenizers) known.push_back(each.name);
      return absl::UnimplementedError(
          fmt::format("{}: pre-tokenizer \"{}\" (tokenizer.ggml.pre) is not known; known: {}", file_.path(), name,
                      fmt::join(known, ", ")));
    }
    if (pre->individual_digits) spec_.pre_tokenizer.push_back({PreTokenizerStep::Kind::kIndividualDigits, {}});
    spec_.pre_tokenizer.push_back({PreTokenizerStep::Kind::kSplit, std::string(pre->pattern)});
    spec_.ignore_merges = pre->ignore_merges;
    spec_.add_bos = pre->add_bos;
    spec_.normalizer = pre->normalizer;
    return absl::OkStatus();
  }

  absl::Status tokens() {
    TANDEM_ASSIGN(const auto texts, file_.texts("tokenizer.ggml.tokens", kMaxVocab));
    if (!texts) return missing("tokenizer.ggml.tokens");
    TANDEM_ASSIGN(const auto types, file_.integers("tokenizer.ggml.token_type", kMaxVocab));
    // Without types no token would be a control token, and a turn would never end.
    if (!types) return missing("tokenizer.ggml.token_type");
    if (types->size() != texts->size()) {
      return fail(fmt::format("tokenizer.ggml.token_type has {} elements, tokenizer.ggml.tokens {}", types->size(),
                              texts->size()));
    }
    spec_.tokens.assign(texts->begin(), texts->end());
    spec_.kinds.reserve(types->size());
    for (const std::int64_t type : *types) {
      switch (type) {
        case 1: spec_.kinds.push_back(TokenKind::kNormal); break;
        case 2:  // unknown
        case 3: spec_.kinds.push_back(TokenKind::kControl); break;
        case 4: spec_.kinds.push_back(TokenKind::kUserDefined); break;
        case 0:  // undefined
        case 5:
        case 6: spec_.kinds.push_back(TokenKind::kUnused); break;  // a byte token: no byte-level merge makes one
        default:
          return fail(
              fmt::format("tokenizer.ggml.token_type of token {} is {}; 0 to 6 are defined", spec_.kinds.size(), type));
      }
    }
    return absl::OkStatus();
  }

  absl::Status merges() {
    TANDEM_ASSIGN(const auto merges, file_.texts("tokenizer.ggml.merges", kMaxMerges));
    if (!merges) return missing("tokenizer.ggml.merges");
    spec_.merges.reserve(merges->size());
    for (const std::string_view merge : *merges) {
      // The left part is never empty, so a space in front belongs to it.
      const std::size_t space = merge.find(' ', 1);
      if (space == std::string_view::npos || space + 1 == merge.size()) {
        return fail(fmt::format("tokenizer.ggml.merges element {} is \"{}\"; two parts are expected",
                                spec_.merges.size(), merge.substr(0, 80)));
      }
      spec_.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<TokenId>> id(std::string_view key) const {
    TANDEM_ASSIGN(const auto value, file_.integer(key, 0, static_cast<std::int64_t>(spec_.tokens.size()) - 1));
    return value ? std::optional<TokenId>(static_cast<TokenId>(*value)) : std::nullopt;
  }

  absl::Status settings() {
    TANDEM_ASSIGN(spec_.bos, id("tokenizer.ggml.bos_token_id"));
    TANDEM_ASSIGN(spec_.eos, id("tokenizer.ggml.eos_token_id"));
    TANDEM_ASSIGN(spec_.unk, id("tokenizer.ggml.unknown_token_id"));
    std::vector<TokenId> ends;
    for (const std::string_view key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
      TANDEM_ASSIGN(const auto end, id(key));
      if (end) ends.push_back(*end);
    }
    set_end_of_generation(spec_, ends);
    TANDEM_ASSIGN(const auto add_bos, file_.boolean("tokenizer.ggml.add_bos_token"));
    TANDEM_ASSIGN(const auto add_eos, file_.boolean("tokenizer.ggml.add_eos_token"));
    TANDEM_ASSIGN(const auto add_space, file_.boolean("tokenizer.ggml.add_space_prefix"));
    spec_.add_bos = add_bos.value_or(spec_.add_bos);
    spec_.add_eos = add_eos.value_or(false);
    spec_.add_prefix_space = add_space.value_or(false);
    TANDEM_ASSIGN(const auto chat_template, file_.text("tokenizer.chat_template"));
    spec_.chat_template = chat_template.value_or(std::string_view());
    return absl::OkStatus();
  }

  const GgufFile& file_;
  TokenizerSpec spec_;
};

}  // namespace

absl::StatusOr<TokenizerSpec> read_gguf_tokenizer(const GgufFile& file) { return TokenizerReader(file).read(); }

}  // namespace tandem
