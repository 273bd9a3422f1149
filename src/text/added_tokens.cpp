#include "text/added_tokens.h"

#include <optional>

namespace tandem {
namespace {

std::uint64_t edge(std::uint32_t node, char byte) {
  return std::uint64_t{node} << 8U | static_cast<unsigned char>(byte);
}

}  // namespace

AddedTokens::AddedTokens(std::span<const std::string> tokens, std::span<const TokenKind> kinds) : nodes_(1) {
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const bool control = kinds[id] == TokenKind::kControl;
    if ((!control && kinds[id] != TokenKind::kUserDefined) || tokens[id].empty()) continue;
    starts_[static_cast<unsigned char>(tokens[id].front())] = true;
    NodeIdx node = 0;
    for (const char byte : tokens[id]) {
      const auto [it, inserted] = edges_.try_emplace(edge(node, byte), static_cast<NodeIdx>(nodes_.size()));
      node = it->second;
      if (inserted) nodes_.emplace_back();
    }
    nodes_[node] = {.id = static_cast<TokenId>(id), .control = control};
  }
}

std::vector<AddedMatch> AddedTokens::find_all(std::string_view text, std::span<const TextSpan> user_spans) const {
  std::vector<AddedMatch> matches;
  std::size_t span_idx = 0;  // the first span that ends behind `begin`
  for (std::size_t begin = 0; begin < text.size();) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) {
      ++begin;
      continue;
    }
    while (span_idx < user_spans.size() &&
           (user_spans[span_idx].end <= begin || user_spans[span_idx].begin == user_spans[span_idx].end)) {
      ++span_idx;
    }
    // A control token must end before the user's text begins.
    const std::size_t control_limit = span_idx < user_spans.size() ? user_spans[span_idx].begin : text.size();
    std::optional<AddedMatch> longest;
    NodeIdx node = 0;
    for (std::size_t end = begin; end < text.size();) {
      const auto it = edges_.find(edge(node, text[end]));
      if (it == edges_.end()) break;
      node = it->second;
      ++end;
      const Node& reached = nodes_[node];
      if (reached.id >= 0 && (!reached.control || end <= control_limit)) {
        longest = AddedMatch{.begin = begin, .end = end, .id = reached.id};
      }
    }
    if (longest.has_value()) matches.push_back(*longest);
    begin = longest.has_value() ? longest->end : begin + 1;
  }
  return matches;
}

}  // namespace tandem
