#include <algorithm>
#include <utility>

#include "fmt/core.h"
#include "model/end_tokens.h"
#include "model/hf_model.h"
#include "model/json_file.h"
#include "model/spec.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{48} << 20;
constexpr std::uint64_t kMaxTemplateBytes = std::uint64_t{1} << 20;
constexpr std::size_t kMaxSteps = 16;

// A plain text as a regular expression that matches it alone.
std::string escape(std::string_view text) {
  constexpr std::string_view kSpecial = R"(\^$.|?*+()[]{}-#&~)";
  std::string pattern;
  for (const char c : text) {
    if (kSpecial.find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

std::string type_of(const json& object) {
  const json* type = json_member(object, "type");
  return type != nullptr && type->is_string() ? type->get<std::string>() : std::string();
}

// Translates tokenizer.json part by part. Whatever it does not understand it refuses, since a tokenizer that is
// nearly right gives answers that are nearly right.
class TokenizerReader final {
 public:
  TokenizerReader(std::string path, const json& root, std::int32_t vocab_size)
      : path_(std::move(path)), root_(root), vocab_size_(vocab_size) {}

  absl::StatusOr<TokenizerSpec> read() {
    TANDEM_TRY(model());
    TANDEM_TRY(added_tokens());
    TANDEM_TRY(normalizer(json_member(root_, "normalizer")));
    TANDEM_TRY(pre_tokenizers());
    TANDEM_TRY(decoder());
    if (const json* post = json_member(root_, "post_processor"); post != nullptr) TANDEM_TRY(post_processor(*post, 0));
    return std::move(spec_);
  }

 private:
  absl::Status fail(std::string_view what) const {
    return absl::InvalidArgumentError(fmt::format("{}: {}", path_, what));
  }
  absl::Status unsupported(std::string_view what) const {
    return absl::UnimplementedError(fmt::format("{}: {} is not supported", path_, what));
  }

  absl::StatusOr<bool> flag(const json& object, const char* key, bool fallback) const {
    TANDEM_ASSIGN(const auto value, json_boolean(path_, object, key));
    return value.value_or(fallback);
  }

  absl::Status model() {
    const json* model = json_member(root_, "model");
    if (model == nullptr || !model->is_object()) return fail("\"model\" is missing");
    // Files of the first versions name no type; a BPE model is told by its merges.
    const json* merges = json_member(*model, "merges");
    const std::string type = json_member(*model, "type") == nullptr && merges != nullptr ? "BPE" : type_of(*model);
    if (type != "BPE") return unsupported(fmt::format("model type \"{}\" (supported: byte-level BPE)", type));
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      TANDEM_ASSIGN(const auto value, json_text(path_, *model, affix));
      if (value && !value->empty()) return unsupported(fmt::format("{} \"{}\"", affix, *value));
    }
    TANDEM_ASSIGN(const bool byte_fallback, flag(*model, "byte_fallback", false));
    if (byte_fallback) return unsupported("byte_fallback (a SentencePiece vocabulary)");
    TANDEM_ASSIGN(const auto dropout, json_number(path_, *model, "dropout"));
    if (dropout.value_or(0.0) != 0.0) return unsupported("dropout");
    TANDEM_ASSIGN(spec_.ignore_merges, flag(*model, "ignore_merges", false));
    const json* vocab = json_member(*model, "vocab");
    if (vocab == nullptr || !vocab->is_object()) return fail("\"model.vocab\" is missing");
    for (const auto& [token, id] : vocab->items()) {
      TANDEM_TRY(put(token, id, TokenKind::kNormal, "model.vocab"));
    }
    if (merges == nullptr || !merges->is_array()) return fail("\"model.merges\" is missing");
    TANDEM_TRY(read_merges(*merges));
    TANDEM_ASSIGN(const auto unk, json_text(path_, *model, "unk_token"));
    if (!unk) return absl::OkStatus();
    const json* id = json_member(*vocab, unk->c_str());
    if (id == nullptr) return fail(fmt::format("unk_token \"{}\" is not in the vocabulary", *unk));
    spec_.unk = static_cast<TokenId>(id->get<std::int64_t>());
    return absl::OkStatus();
  }

  // Gives `id` its text; ids that nothing names stay unused.
  absl::Status put(const std::string& token, const json& id, TokenKind kind, std::string_view where) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= vocab_size_) {
      return fail(fmt::format("{}: the id of \"{}\" is {}; the model's vocabulary has ids in [0, {})", where, token,
                              id.is_number() ? id.dump() : "not a number", vocab_size_));
    }
    const auto idx = static_cast<std::size_t>(id.get<std::int64_t>());
    if (idx >= spec_.tokens.size()) {
      spec_.tokens.resize(idx + 1);
      spec_.kinds.resize(idx + 1, TokenKind::kUnused);
    }
    const bool taken = spec_.kinds[idx] != TokenKind::kUnused;
    if (taken && (kind == TokenKind::kNormal || spec_.tokens[idx] != token)) {
      return fail(fmt::format("{}: id {} is both \"{}\" and \"{}\"", where, idx, spec_.tokens[idx], token));
    }
    spec_.tokens[idx] = token;
    spec_.kinds[idx] = kind;
    return absl::OkStatus();
  }

  absl::Status read_merges(const json& merges) {
    if (merges.size() > static_cast<std::size_t>(kMaxMerges)) {
      return fail(fmt::format("{} merges; at most {} are read", merges.size(), kMaxMerges));
    }
    spec_.merges.reserve(merges.size());
    for (const json& merge : merges) {
      const std::string where = fmt::format("element {} of model.merges", spec_.merges.size());
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        spec_.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      } else if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        const std::size_t space = text.find(' ', 1);
        if (space == std::string::npos) return fail(where + " is not two tokens with a space between");
        spec_.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
      } else {
        return fail(where + " is neither a string nor a pair of strings");
      }
      if (spec_.merges.back().first.empty() || spec_.merges.back().second.empty())
        return fail(where + " has an empty part");
    }
    return absl::OkStatus();
  }

  absl::Status added_tokens() {
    const json* added = json_member(root_, "added_tokens");
    if (added == nullptr) return absl::OkStatus();
    if (!added->is_array()) return fail("\"added_tokens\" must be a list");
    const json& vocab = *json_member(*json_member(root_, "model"), "vocab");
    for (const json& token : *added) {
      TANDEM_ASSIGN(const auto content, json_text(path_, token, "content"));
      const json* id = json_member(token, "id");
      if (!content || content->empty() || id == nullptr)
        return fail("an element of added_tokens has no content or no id");
      for (const char* option : {"single_word", "lstrip", "rstrip"}) {
        TANDEM_ASSIGN(const bool set, flag(token, option, false));
        if (set) return unsupported(fmt::format("{} of added token \"{}\"", option, *content));
      }
      const json* known = json_member(vocab, content->c_str());
      if (known != nullptr && *known != *id) return fail(fmt::format("token \"{}\" has two ids", *content));
      TANDEM_ASSIGN(const bool special, flag(token, "special", false));
      TANDEM_TRY(put(*content, *id, special ? TokenKind::kControl : TokenKind::kUserDefined, "added_tokens"));
    }
    return absl::OkStatus();
  }

  absl::Status normalizer(const json* normalizer) {
    if (normalizer == nullptr) return absl::OkStatus();
    const std::string type = type_of(*normalizer);
    const json* members = json_member(*normalizer, "normalizers");
    if (type == "Sequence" && members != nullptr && members->is_array() && members->size() <= 1) {
      return members->empty() || type_of((*members)[0]) == "Sequence" ? absl::OkStatus()
                                                                      : this->normalizer(&(*members)[0]);
    }
    if (type != "NFC") return unsupported(fmt::format("normalizer \"{}\" (supported: none, NFC)", type));
    spec_.normalizer = Normalizer::kNfc;
    return absl::OkStatus();
  }

  absl::Status pre_tokenizers() {
    const json* step = json_member(root_, "pre_tokenizer");
    const bool is_sequence = step != nullptr && type_of(*step) == "Sequence";
    const json* members = is_sequence ? json_member(*step, "pretokenizers") : nullptr;
    if (step == nullptr || (is_sequence && (members == nullptr || !members->is_array() || members->empty()))) {
      return unsupported("a tokenizer without pre_tokenizer ByteLevel");
    }
    const json steps = is_sequence ? *members : json::array({*step});
    if (steps.size() > kMaxSteps)
      return fail(fmt::format("{} pre-tokenizers; at most {} are read", steps.size(), kMaxSteps));
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const bool last = i + 1 == steps.size();
      if (last != (type_of(steps[i]) == "ByteLevel")) {
        return unsupported(fmt::format("pre_tokenizer \"{}\" {} (ByteLevel must come last)", type_of(steps[i]),
                                       last ? "at the end" : "before others"));
      }
      TANDEM_TRY(last ? byte_level(steps[i], steps.size() == 1) : pre_tokenizer(steps[i]));
    }
    return absl::OkStatus();
  }

  absl::Status byte_level(const json& step, bool alone) {
    TANDEM_ASSIGN(spec_.add_prefix_space, flag(step, "add_prefix_space", true));
    // After another step it would put a space before every piece, not before the text.
    if (spec_.add_prefix_space && !alone) return unsupported("add_prefix_space after another pre_tokenizer");
    TANDEM_ASSIGN(const bool use_regex, flag(step, "use_regex", true));
    if (use_regex) spec_.pre_tokenizer.push_back({PreTokenizerStep::Kind::kSplit, std::string(kGpt2Pattern)});
    return absl::OkStatus();
  }

  absl::Status pre_tokenizer(const json& step) {
    const std::string type = type_of(step);
    if (type == "Digits") {
      TANDEM_ASSIGN(const bool individual, flag(step, "individual_digits", false));
      spec_.pre_tokenizer.push_back(individual ? PreTokenizerStep{PreTokenizerStep::Kind::kIndividualDigits, {}}
                                               : PreTokenizerStep{PreTokenizerStep::Kind::kSplit, R"(\p{N}+)"});
      return absl::OkStatus();
    }
    if (type != "Split")
      return unsupported(fmt::format("pre_tokenizer \"{}\" (supported: Split, Digits, ByteLevel)", type));
    TANDEM_ASSIGN(const auto behavior, json_text(path_, step, "behavior"));
    TANDEM_ASSIGN(const bool invert, flag(step, "invert", false));
    if (behavior != "Isolated" || invert) {
      return unsupported(
          fmt::format("pre_tokenizer Split with behavior \"{}\" and invert {} (supported: Isolated, false)",
                      behavior.value_or(""), invert));
    }
    const json* pattern = json_member(step, "pattern");
    if (pattern == nullptr) return fail("a Split pre_tokenizer has no pattern");
    TANDEM_ASSIGN(const auto regex, json_text(path_, *pattern, "Regex"));
    TANDEM_ASSIGN(const auto plain, json_text(path_, *pattern, "String"));
    if (!regex && !plain) return fail("a Split pre_tokenizer has neither a Regex nor a String pattern");
    spec_.pre_tokenizer.push_back({PreTokenizerStep::Kind::kSplit, regex ? *regex : escape(*plain)});
    return absl::OkStatus();
  }

  absl::Status decoder() const {
    const json* decoder = json_member(root_, "decoder");
    const std::string type = decoder == nullptr ? "none" : type_of(*decoder);
    return type == "ByteLevel" ? absl::OkStatus()
                               : unsupported(fmt::format("decoder \"{}\" (supported: ByteLevel)", type));
  }

  absl::Status post_processor(const json& post, int depth) {
    const std::string type = type_of(post);
    if (type == "ByteLevel") return absl::OkStatus();  // trims offsets, which nobody reads here
    const json* members = json_member(post, "processors");
    if (type == "Sequence" && members != nullptr && members->is_array() && depth == 0) {
      for (const json& member : *members) TANDEM_TRY(post_processor(member, depth + 1));
      return absl::OkStatus();
    }
    if (type != "TemplateProcessing") {
      return unsupported(fmt::format("post_processor \"{}\" (supported: TemplateProcessing)", type));
    }
    return post_template(post);
  }

  // "single" lists what surrounds a prompt: [begin token] sequence [end token].
  absl::Status post_template(const json& post) {
    const json* single = json_member(post, "single");
    if (single == nullptr || !single->is_array()) return fail("the post_processor's template has no \"single\"");
    bool seen_text = false;
    for (const json& piece : *single) {
      if (json_member(piece, "Sequence") != nullptr && !seen_text) {
        seen_text = true;
        continue;
      }
      const json* special = json_member(piece, "SpecialToken");
      std::optional<TokenId>& token = seen_text ? spec_.eos : spec_.bos;
      bool& add = seen_text ? spec_.add_eos : spec_.add_bos;
      if (special == nullptr || add) return unsupported("a post_processor that adds more than one token on a side");
      TANDEM_ASSIGN(const auto text, json_text(path_, *special, "id"));
      token = text ? find_token(*text) : std::nullopt;
      if (!token) return fail(fmt::format("post_processor token \"{}\" is not in the vocabulary", text.value_or("")));
      add = true;
    }
    return seen_text ? absl::OkStatus() : fail("the post_processor's template drops the text");
  }

  std::optional<TokenId> find_token(std::string_view text) const {
    const auto found = std::ranges::find(spec_.tokens, text);
    if (found == spec_.tokens.end()) return std::nullopt;
    return static_cast<TokenId>(found - spec_.tokens.begin());
  }

  const std::string path_;
  const json& root_;
  const std::int32_t vocab_size_;
  TokenizerSpec spec_;
};

// "bos_token" of tokenizer_config.json: a string, an object with "content", or null for none.
absl::Status read_named_token(const std::string& path, const json& config, const char* key, TokenizerSpec& spec,
                              std::optional<TokenId>& token) {
  const json* value = json_member(config, key);
  if (value == nullptr) return absl::OkStatus();
  const json* content = value->is_object() ? json_member(*value, "content") : value;
  if (content == nullptr || !content->is_string()) {
    return absl::InvalidArgumentError(fmt::format("{}: \"{}\" must be a string or have a content", path, key));
  }
  const auto& text = content->get_ref<const std::string&>();
  const auto found = std::ranges::find(spec.tokens, text);
  if (text.empty() || found == spec.tokens.end()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: \"{}\" is \"{}\", which tokenizer.json does not have", path, key, text));
  }
  const auto id = static_cast<TokenId>(found - spec.tokens.begin());
  if (token && *token != id) {
    return absl::InvalidArgumentError(
        fmt::format("{}: \"{}\" is token {}, but tokenizer.json's post_processor adds {}", path, key, id, *token));
  }
  token = id;
  spec.kinds[static_cast<std::size_t>(id)] = TokenKind::kControl;  // whatever added_tokens says of it
  return absl::OkStatus();
}

// A string, or a list of {name, template} of which "default" is the one for chats.
absl::Status read_config_template(const std::string& path, const json& config, std::string& chat_template) {
  const json* value = json_member(config, "chat_template");
  if (value == nullptr) return absl::OkStatus();
  const json* chosen = value->is_string() ? value : nullptr;
  if (value->is_array()) {
    for (const json& each : *value) {
      const json* name = json_member(each, "name");
      if (name != nullptr && *name == "default") chosen = json_member(each, "template");
    }
  }
  if (chosen == nullptr || !chosen->is_string()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: \"chat_template\" must be a string, or a list with one named default", path));
  }
  chat_template = chosen->get<std::string>();
  return absl::OkStatus();
}

absl::Status read_template_file(const std::string& path, std::string& chat_template) {
  absl::StatusOr<Mapping> file = map_model_file(path);
  if (absl::IsNotFound(file.status())) return absl::OkStatus();
  if (!file.ok()) return file.status();
  if (file->size() > kMaxTemplateBytes) {
    return absl::InvalidArgumentError(
        fmt::format("{} has {} bytes; at most {} are read", path, file->size(), kMaxTemplateBytes));
  }
  chat_template.assign(reinterpret_cast<const char*>(file->data()), file->size());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> read_hf_tokenizer(const std::string& folder, const ConfigTokens& config_tokens,
                                                std::int32_t vocab_size) {
  const std::string path = folder + "/tokenizer.json";
  TANDEM_ASSIGN(const auto root, read_json_file(path, kMaxTokenizerBytes));
  if (!root) return absl::NotFoundError(fmt::format("{} is missing", path));
  TANDEM_ASSIGN(TokenizerSpec spec, TokenizerReader(path, *root, vocab_size).read());
  const std::string config_path = folder + "/tokenizer_config.json";
  TANDEM_ASSIGN(const auto config, read_json_file(config_path, kMaxTokenizerBytes));
  if (config) {
    TANDEM_TRY(read_named_token(config_path, *config, "bos_token", spec, spec.bos));
    TANDEM_TRY(read_named_token(config_path, *config, "eos_token", spec, spec.eos));
    TANDEM_TRY(read_config_template(config_path, *config, spec.chat_template));
  }
  TANDEM_TRY(read_template_file(folder + "/chat_template.jinja", spec.chat_template));
  // An explicit null says that there is none; only silence leaves it to the model's configuration.
  if (!spec.bos && (!config || !config->contains("bos_token"))) spec.bos = config_tokens.bos;
  if (!spec.eos && !config_tokens.ends.empty()) spec.eos = config_tokens.ends.front();
  set_end_of_generation(spec, config_tokens.ends);
  return spec;
}

}  // namespace tandem
