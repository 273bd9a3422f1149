// One table of options, filled once and read twice: for the command line (main builds its flags from it) and
// for the configuration file. Precedence is the caller's order: apply the file first, then the flags.
// The table refers to the struct it fills; that must outlive it. Used by main's thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"

namespace tandem {

enum class OptionKind : std::uint8_t { kValue, kFlag, kList };

struct Option {
  std::string name;  // kebab-case, no dashes in front
  OptionKind kind = OptionKind::kValue;
  std::string help;
  std::string value_name;    // "N", "TEXT", "semi|fused"; empty for a flag
  std::string default_text;  // set(default_text) gives the default back
  // One value, or for a list any number, which replace those it had. Fails without a change.
  std::function<absl::Status(std::span<const std::string> values)> assign;

  // As one piece of text: "true" or "false" for a flag, values between commas for a list.
  absl::Status set(std::string_view text) const;
};

// A whole decimal number in [min, max].
absl::StatusOr<std::int64_t> parse_integer(std::string_view text, std::int64_t min, std::int64_t max);
absl::StatusOr<double> parse_real(std::string_view text, double min, double max);

class OptionTable final {
 public:
  void add_text(std::string name, std::string& target, std::string help);
  void add_list(std::string name, std::vector<std::string>& target, std::string help);
  void add_flag(std::string name, bool& target, std::string help);
  void add_real(std::string name, std::optional<double>& target, std::string_view absent, double min, double max,
                std::string help);

  template <class Integer>
  void add_integer(std::string name, Integer& target, std::int64_t min, std::int64_t max, std::string help) {
    add_value({std::move(name), OptionKind::kValue, std::move(help), "N", std::to_string(target), {}},
              [&target, min, max](std::string_view text) -> absl::Status {
                TANDEM_ASSIGN(const std::int64_t value, parse_integer(text, min, max));
                target = static_cast<Integer>(value);
                return absl::OkStatus();
              });
  }

  // `absent` is the word that stands for no value, such as "auto".
  template <class Integer>
  void add_integer(std::string name, std::optional<Integer>& target, std::string_view absent, std::int64_t min,
                   std::int64_t max, std::string help) {
    const std::string word(absent);
    add_value({std::move(name),
               OptionKind::kValue,
               std::move(help),
               "N|" + word,
               target ? std::to_string(*target) : word,
               {}},
              [&target, word, min, max](std::string_view text) -> absl::Status {
                if (text == word) {
                  target.reset();
                  return absl::OkStatus();
                }
                TANDEM_ASSIGN(const std::int64_t value, parse_integer(text, min, max));
                target = static_cast<Integer>(value);
                return absl::OkStatus();
              });
  }

  // One of a few words, each standing for a value.
  template <class T>
  void add_choice(std::string name, T& target, std::vector<std::pair<std::string, T>> choices, std::string help) {
    Option option{std::move(name), OptionKind::kValue, std::move(help), "", "", {}};
    for (const auto& [word, value] : choices) {
      option.value_name += (option.value_name.empty() ? "" : "|") + word;
      if (value == target) option.default_text = word;
    }
    const std::string words = option.value_name;
    add_value(std::move(option), [&target, words, choices = std::move(choices)](std::string_view text) {
      for (const auto& [word, value] : choices) {
        if (word != text) continue;
        target = value;
        return absl::OkStatus();
      }
      return bad_choice(text, words);
    });
  }

  std::span<const Option> options() const& { return options_; }
  std::span<const Option> options() && = delete;
  const Option* find(std::string_view name) const;
  // `; did you mean "port"?`, or empty when no name is near.
  std::string did_you_mean(std::string_view name) const;

 private:
  void add_value(Option option, std::function<absl::Status(std::string_view)> set);
  static absl::Status bad_choice(std::string_view text, std::string_view words);

  std::vector<Option> options_;
};

// Applies a YAML mapping of option names to values. Strict: unknown and repeated keys, values of another type or
// out of range, nesting, anchors and tags are refused with "path:line: key: reason". Options before the fault
// may have changed.
absl::Status apply_yaml_file(const std::string& path, const OptionTable& table);

}  // namespace tandem
