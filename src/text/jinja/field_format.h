// What `%` formatting and str.format share: one field's layout, and numbers and text laid out by it. For the sources
// jinja/percent_format.cpp and jinja/str_format.cpp only; everyone else calls percent_format and brace_format of
// jinja/python.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "text/jinja/python.h"

namespace tandem::jinja {

struct Spec {
  char32_t fill = ' ';
  char align = 0;  // < > ^ =
  char sign = 0;  // + - or a space
  bool alternate = false;
  char grouping = 0;  // , or _
  std::int64_t width = 0;
  std::int64_t precision = -1;
  char type = 0;
};

enum class FormatIn : std::uint8_t { kPercent, kBraces };

// Reads digits and moves `at` behind them; nullopt when they are too many for any width or precision.
std::optional<std::int64_t> read_number(std::string_view text, std::size_t& at);
absl::Status append_number(TextBuilder& out, const Value& value, const Spec& spec, FormatIn in);
// `default_align` is for a field that says nothing.
void append_padded_text(TextBuilder& out, const Text& text, const Spec& spec, char default_align);
absl::StatusOr<TextPtr> repr_text(const Value& value);
absl::Status bad_spec(std::string_view spec);

}  // namespace tandem::jinja
