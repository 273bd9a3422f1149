#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <unordered_map>

#include <fmt/format.h>

#include "base/status.h"
#include "text/added_tokens.h"
#include "text/merges.h"
#include "text/pre_tokenizer.h"
#include "text/unicode.h"

namespace tandem {
namespace {

// The byte-level alphabet of GPT-2: a printable Latin-1 character for itself, the others from U+0100 up.
constexpr std::size_t kAlphabetEnd = 0x144;

constexpr std::array<char16_t, 256> kByteToChar = [] {
  std::array<char16_t, 256> table{};
  char16_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    table[byte] = printable ? static_cast<char16_t>(byte) : next++;
  }
  return table;
}();

constexpr std::array<std::int16_t, kAlphabetEnd> kCharToByte = [] {
  std::array<std::int16_t, kAlphabetEnd> table{};
  table.fill(-1);
  for (unsigned byte = 0; byte < 256; ++byte) table[kByteToChar[byte]] = static_cast<std::int16_t>(byte);
  return table;
}();

// The bytes that a token's text in the byte-level alphabet stands for; none when it leaves the alphabet.
std::optional<std::string> from_alphabet(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const Utf8Unit unit = decode_utf8(text);
    if (unit.code_point >= kAlphabetEnd || kCharToByte[unit.code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kCharToByte[unit.code_point]));
    text.remove_prefix(unit.length);
  }
  return bytes;
}

// An immutable set of byte strings, each the bytes of a token: open addressing over token ids.
class WholePieces final {
 public:
  void build(std::span<const std::string> token_bytes, const std::vector<TokenId>& ids) {
    std::size_t size = 16;
    while (size < ids.size() * 2) size *= 2;
    slots_.assign(size, kEmpty);
    for (const TokenId id : ids) {
      const std::string_view bytes = token_bytes[static_cast<std::size_t>(id)];
      max_bytes_ = std::max(max_bytes_, bytes.size());
      std::size_t slot = first_slot(bytes);
      while (slots_[slot] != kEmpty) slot = (slot + 1) & (slots_.size() - 1);
      slots_[slot] = id;
    }
  }

  std::optional<TokenId> find(std::span<const std::string> token_bytes, std::string_view piece) const {
    if (piece.size() > max_bytes_) return std::nullopt;
    for (std::size_t slot = first_slot(piece); slots_[slot] != kEmpty; slot = (slot + 1) & (slots_.size() - 1)) {
      if (token_bytes[static_cast<std::size_t>(slots_[slot])] == piece) return slots_[slot];
    }
    return std::nullopt;
  }

 private:
  static constexpr TokenId kEmpty = -1;
  std::size_t first_slot(std::string_view bytes) const {
    return std::hash<std::string_view>{}(bytes) & (slots_.size() - 1);
  }

  std::vector<TokenId> slots_;
  std::size_t max_bytes_ = 0;
};

// Working memory of one encode call.
struct Scratch {
  std::vector<std::string_view> pieces;
  std::vector<TokenId> ids;
  Merges::Scratch merges;
};

using IdsByText = std::unordered_map<std::string_view, TokenId>;

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(TokenizerSpec spec, PreTokenizer pre_tokenizer)
      : spec_(std::move(spec)), pre_tokenizer_(std::move(pre_tokenizer)), added_(spec_.tokens, spec_.kinds) {}

  // Fills what is derived from the spec; the tokenizer is immutable afterwards.
  absl::Status build();

  std::vector<TokenId> encode(std::string_view text, std::span<const TextSpan> user_spans) const override {
    std::vector<TokenId> out;
    encode_into(text, user_spans, out);
    return out;
  }

  std::vector<TokenId> encode_prompt(std::string_view text) const override {
    std::vector<TokenId> out;
    if (spec_.add_bos) out.push_back(*spec_.bos);
    encode_into(text, {}, out);
    if (spec_.add_bos && out.size() > 1 && out[1] == *spec_.bos) out.erase(out.begin());
    if (spec_.add_eos) out.push_back(*spec_.eos);
    return out;
  }

  std::string_view token_bytes(TokenId id) const override {
    return valid(id) ? std::string_view(token_bytes_[static_cast<std::size_t>(id)]) : std::string_view();
  }

  TokenKind kind(TokenId id) const override {
    return valid(id) ? spec_.kinds[static_cast<std::size_t>(id)] : TokenKind::kUnused;
  }

  bool ends_generation(TokenId id) const override {
    const std::vector<TokenId>& ends = spec_.end_of_generation;
    return id == spec_.eos || std::find(ends.begin(), ends.end(), id) != ends.end();
  }

  TokenId vocab_size() const override { return static_cast<TokenId>(spec_.tokens.size()); }
  const TokenizerSpec& spec() const override { return spec_; }

 private:
  static constexpr TokenId kNoToken = -1;

  bool valid(TokenId id) const { return id >= 0 && id < vocab_size(); }
  absl::Status build_byte_ids(const IdsByText& ids);
  absl::Status build_merges(const IdsByText& ids);
  void build_whole_pieces();

  void encode_into(std::string_view text, std::span<const TextSpan> user_spans, std::vector<TokenId>& out) const;
  void encode_stretch(std::string_view text, Scratch& scratch, std::vector<TokenId>& out) const;
  void merge_piece(std::string_view piece, Scratch& scratch) const;

  TokenizerSpec spec_;
  PreTokenizer pre_tokenizer_;
  AddedTokens added_;
  Merges merges_;
  std::vector<std::string> token_bytes_;  // by id
  std::array<TokenId, 256> byte_ids_{};   // kNoToken: the vocabulary has none for the byte
  // Pieces whose ids are known without merging: with ignore_merges every normal token, else those that
  // merging gives whole. Most words of ordinary text are among them.
  WholePieces whole_;
};

// Ids of the tokens that merges may name. Control tokens are left out: no user text may ever become one.
absl::StatusOr<IdsByText> index_tokens(const TokenizerSpec& spec) {
  IdsByText all;
  IdsByText mergeable;
  for (std::size_t id = 0; id < spec.tokens.size(); ++id) {
    const std::string& text = spec.tokens[id];
    if (text.empty() || spec.kinds[id] == TokenKind::kUnused) continue;
    const auto [it, inserted] = all.try_emplace(text, static_cast<TokenId>(id));
    if (!inserted) {
      return absl::InvalidArgumentError(fmt::format(
          "tokenizer: tokens {} and {} are both \"{}\"; mark the spare one as unused", it->second, id, text));
    }
    if (spec.kinds[id] != TokenKind::kControl) mergeable.emplace(text, static_cast<TokenId>(id));
  }
  return mergeable;
}

absl::Status BpeTokenizer::build() {
  TANDEM_ASSIGN(const IdsByText ids, index_tokens(spec_));
  token_bytes_.resize(spec_.tokens.size());
  for (std::size_t id = 0; id < spec_.tokens.size(); ++id) {
    if (spec_.kinds[id] == TokenKind::kUnused) continue;
    const bool normal = spec_.kinds[id] == TokenKind::kNormal;
    token_bytes_[id] = normal ? from_alphabet(spec_.tokens[id]).value_or(spec_.tokens[id]) : spec_.tokens[id];
  }
  TANDEM_TRY(build_byte_ids(ids));
  TANDEM_TRY(build_merges(ids));
  build_whole_pieces();
  return absl::OkStatus();
}

// Vocabularies trained without a full alphabet lack bytes that their text never had (SmolLM2: 0x04, 0xF1, ...).
// Those become the unknown token or, where there is none, nothing, as in the reference library. A control token
// (SmolLM2 names <|endoftext|>) is not used for it: no user text may ever become one.
absl::Status BpeTokenizer::build_byte_ids(const IdsByText& ids) {
  const bool has_unk = spec_.unk.has_value() && kind(*spec_.unk) != TokenKind::kControl;
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    std::string text;
    append_utf8(text, kByteToChar[byte]);
    const auto it = ids.find(text);
    byte_ids_[byte] = it != ids.end() ? it->second : has_unk ? *spec_.unk : kNoToken;
    const bool ordinary = byte == '\n' || (byte >= 0x20 && byte <= 0x7E);
    if (ordinary && byte_ids_[byte] == kNoToken) {
      return absl::InvalidArgumentError(fmt::format(
          "tokenizer: byte {:#04x} has no token (\"{}\") and there is no unknown token for it; only byte-level "
          "vocabularies can be served",
          byte, text));
    }
  }
  return absl::OkStatus();
}

absl::Status BpeTokenizer::build_merges(const IdsByText& ids) {
  merges_.reserve(spec_.merges.size());
  for (std::size_t rank = 0; rank < spec_.merges.size(); ++rank) {
    const auto& [left, right] = spec_.merges[rank];
    const std::string joined = left + right;
    std::array<TokenId, 3> found{};
    const std::array<std::string_view, 3> wanted = {left, right, joined};
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const auto it = ids.find(wanted[i]);
      if (it == ids.end()) {
        return absl::InvalidArgumentError(fmt::format(
            "tokenizer: merge {} (\"{}\" with \"{}\") needs \"{}\", which is no normal token of the vocabulary", rank,
            left, right, wanted[i]));
      }
      found[i] = it->second;
    }
    merges_.add(found[0], found[1], {.rank = static_cast<std::uint32_t>(rank), .result = found[2]});
  }
  return absl::OkStatus();
}

void BpeTokenizer::build_whole_pieces() {
  std::vector<TokenId> whole;
  Scratch scratch;
  for (TokenId id = 0; id < vocab_size(); ++id) {
    const auto idx = static_cast<std::size_t>(id);
    // A token outside the alphabet is no piece of any text.
    if (spec_.kinds[idx] != TokenKind::kNormal || token_bytes_[idx].empty()) continue;
    if (!from_alphabet(spec_.tokens[idx]).has_value()) continue;
    if (!spec_.ignore_merges) {
      merge_piece(token_bytes_[idx], scratch);
      if (scratch.ids.size() != 1 || scratch.ids.front() != id) continue;
    }
    whole.push_back(id);
  }
  whole_.build(token_bytes_, whole);
}

void BpeTokenizer::encode_into(std::string_view text, std::span<const TextSpan> user_spans,
                               std::vector<TokenId>& out) const {
  Scratch scratch;
  std::size_t begin = 0;
  for (const AddedMatch& match : added_.find_all(text, user_spans)) {
    encode_stretch(text.substr(begin, match.begin - begin), scratch, out);
    out.push_back(match.id);
    begin = match.end;
  }
  encode_stretch(text.substr(begin), scratch, out);
}

void BpeTokenizer::encode_stretch(std::string_view text, Scratch& scratch, std::vector<TokenId>& out) const {
  if (text.empty()) return;
  std::string changed;
  if (spec_.normalizer == Normalizer::kNfc) {
    changed = to_nfc(text);
    text = changed;
  }
  if (spec_.add_prefix_space && !text.starts_with(' ')) {
    changed = " " + std::string(text);
    text = changed;
  }
  scratch.pieces.clear();
  pre_tokenizer_.split(text, scratch.pieces);
  for (const std::string_view piece : scratch.pieces) {
    if (const std::optional<TokenId> id = whole_.find(token_bytes_, piece)) {
      out.push_back(*id);
      continue;
    }
    merge_piece(piece, scratch);
    out.insert(out.end(), scratch.ids.begin(), scratch.ids.end());
  }
}

void BpeTokenizer::merge_piece(std::string_view piece, Scratch& scratch) const {
  scratch.ids.clear();
  scratch.ids.reserve(piece.size());
  for (const char byte : piece) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(byte)];
    if (id != kNoToken) scratch.ids.push_back(id);
  }
  merges_.apply(scratch.ids, scratch.merges);
}

absl::Status check_id(std::string_view field, std::optional<TokenId> id, std::size_t vocab_size) {
  if (!id.has_value() || (*id >= 0 && static_cast<std::size_t>(*id) < vocab_size)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("tokenizer: {} is {}, outside the vocabulary of {} tokens", field, *id, vocab_size));
}

absl::Status check_fields(const TokenizerSpec& spec) {
  const std::size_t size = spec.tokens.size();
  if (size == 0) return absl::InvalidArgumentError("tokenizer: the vocabulary is empty");
  if (size > static_cast<std::size_t>(std::numeric_limits<TokenId>::max()) || spec.merges.size() >= Merge::kNone) {
    return absl::InvalidArgumentError(
        fmt::format("tokenizer: {} tokens and {} merges are more than ids can count", size, spec.merges.size()));
  }
  if (spec.kinds.size() != size) {
    return absl::InvalidArgumentError(
        fmt::format("tokenizer: {} tokens but {} token kinds; there must be one each", size, spec.kinds.size()));
  }
  TANDEM_TRY(check_id("the begin token", spec.bos, size));
  TANDEM_TRY(check_id("the end token", spec.eos, size));
  TANDEM_TRY(check_id("the unknown token", spec.unk, size));
  for (const TokenId id : spec.end_of_generation) TANDEM_TRY(check_id("an end-of-generation token", id, size));
  if (spec.add_bos && !spec.bos.has_value()) {
    return absl::InvalidArgumentError("tokenizer: prompts are to begin with the begin token, but none is named");
  }
  if (spec.add_eos && !spec.eos.has_value()) {
    return absl::InvalidArgumentError("tokenizer: prompts are to end with the end token, but none is named");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> create_tokenizer(TokenizerSpec spec) {
  TANDEM_TRY(check_fields(spec));
  TANDEM_ASSIGN(PreTokenizer pre_tokenizer, PreTokenizer::create(spec.pre_tokenizer));
  auto tokenizer = std::make_unique<BpeTokenizer>(std::move(spec), std::move(pre_tokenizer));
  TANDEM_TRY(tokenizer->build());
  return tokenizer;
}

}  // namespace tandem
