// The words that stand for an enum's values in flags, configuration files, records and messages. Each enum has one
// table, beside the enum, and whoever reads or writes a word uses that table. Plain data, any thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem {

template <class T>
struct Word {
  std::string_view word;
  T value;
};

// The word of `value`; empty when the table has none.
template <class Table, class T>
constexpr std::string_view word_of(const Table& table, T value) {
  for (const auto& entry : table) {
    if (entry.value == value) return entry.word;
  }
  return {};
}

// "first|second|third", for help texts and errors.
template <class Table>
std::string words_of(const Table& table, std::string_view separator = "|") {
  std::string words;
  for (const auto& entry : table) words.append(words.empty() ? std::string_view() : separator).append(entry.word);
  return words;
}

// The table as the choices of a flag. `T` may be wider than the table's values, such as an optional of them.
template <class T, class Table>
std::vector<std::pair<std::string, T>> choices_of(const Table& table) {
  std::vector<std::pair<std::string, T>> choices;
  for (const auto& entry : table) choices.emplace_back(std::string(entry.word), T(entry.value));
  return choices;
}

}  // namespace tandem
