#include "base/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "fmt/core.h"

namespace tandem {
namespace {

// Long values are cut in messages.
std::string quoted(std::string_view text) {
  constexpr std::size_t kMaxShown = 80;
  if (text.size() <= kMaxShown) return fmt::format("\"{}\"", text);
  return fmt::format("\"{}...\"", text.substr(0, kMaxShown));
}

template <class Number>
absl::StatusOr<Number> parse_number(std::string_view text, Number min, Number max, std::string_view what) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  // Out of Number's own range is reported like out of the option's.
  const bool is_number = !text.empty() && rest == end && error != std::errc::invalid_argument;
  // Written so that NaN fails.
  if (!is_number || error != std::errc() || !(value >= min && value <= max)) {
    return absl::InvalidArgumentError(fmt::format("{} {}; write {} from {} to {}", quoted(text),
                                                  is_number ? "is out of range" : fmt::format("is not {}", what), what,
                                                  min, max));
  }
  return value;
}

// Levenshtein's distance.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> items;
  if (text.empty()) return items;
  for (;;) {
    const std::size_t comma = text.find(',');
    items.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return items;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

absl::Status Option::set(std::string_view text) const {
  if (kind == OptionKind::kList) return assign(split_at_commas(text));
  const std::string value(text);
  return assign({&value, 1});
}

absl::StatusOr<std::int64_t> parse_integer(std::string_view text, std::int64_t min, std::int64_t max) {
  return parse_number(text, min, max, "a whole number");
}

absl::StatusOr<double> parse_real(std::string_view text, double min, double max) {
  return parse_number(text, min, max, "a number");
}

void OptionTable::add_text(std::string name, std::string& target, std::string help) {
  add_value({std::move(name), OptionKind::kValue, std::move(help), "TEXT", target, {}}, [&](std::string_view text) {
    target = text;
    return absl::OkStatus();
  });
}

void OptionTable::add_list(std::string name, std::vector<std::string>& target, std::string help) {
  std::string text;
  for (const std::string& item : target) text += (text.empty() ? "" : ",") + item;
  TANDEM_CHECK(find(name) == nullptr, fmt::format("option {} is added once", name));
  options_.push_back({std::move(name), OptionKind::kList, std::move(help), "TEXT", std::move(text),
                      [&target](std::span<const std::string> values) {
                        if (std::find(values.begin(), values.end(), "") != values.end()) {
                          return absl::InvalidArgumentError("an item of the list is empty; remove it");
                        }
                        target.assign(values.begin(), values.end());
                        return absl::OkStatus();
                      }});
}

void OptionTable::add_flag(std::string name, bool& target, std::string help) {
  add_value({std::move(name), OptionKind::kFlag, std::move(help), "", target ? "true" : "false", {}},
            [&target](std::string_view text) {
              if (text != "true" && text != "false") return bad_choice(text, "true|false");
              target = text == "true";
              return absl::OkStatus();
            });
}

void OptionTable::add_real(std::string name, std::optional<double>& target, std::string_view absent, double min,
                           double max, std::string help) {
  const std::string word(absent);
  add_value({std::move(name),
             OptionKind::kValue,
             std::move(help),
             "X|" + word,
             target ? fmt::format("{}", *target) : word,
             {}},
            [&target, word, min, max](std::string_view text) -> absl::Status {
              if (text == word) {
                target.reset();
                return absl::OkStatus();
              }
              TANDEM_ASSIGN(target, parse_real(text, min, max));
              return absl::OkStatus();
            });
}

const Option* OptionTable::find(std::string_view name) const {
  const auto found = std::find_if(options_.begin(), options_.end(), [&](const Option& o) { return o.name == name; });
  return found == options_.end() ? nullptr : &*found;
}

std::string OptionTable::did_you_mean(std::string_view name) const {
  constexpr std::size_t kMaxName = 64;  // the distance is quadratic, the name a stranger's
  if (name.size() > kMaxName) return "";
  std::string spelled(name);
  std::replace(spelled.begin(), spelled.end(), '_', '-');
  const Option* nearest = nullptr;
  std::size_t smallest = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const Option& option : options_) {
    const std::size_t distance = edit_distance(spelled, option.name);
    if (distance >= smallest) continue;
    smallest = distance;
    nearest = &option;
  }
  return nearest == nullptr ? "" : fmt::format("; did you mean \"{}\"?", nearest->name);
}

void OptionTable::add_value(Option option, std::function<absl::Status(std::string_view)> set) {
  TANDEM_CHECK(find(option.name) == nullptr, fmt::format("option {} is added once", option.name));
  option.assign = [set = std::move(set)](std::span<const std::string> values) -> absl::Status {
    if (values.size() != 1) {
      return absl::InvalidArgumentError(fmt::format("takes one value, got {}; give it once", values.size()));
    }
    return set(values[0]);
  };
  options_.push_back(std::move(option));
}

absl::Status OptionTable::bad_choice(std::string_view text, std::string_view words) {
  return absl::InvalidArgumentError(fmt::format("{} is not one of {}", quoted(text), words));
}

}  // namespace tandem
