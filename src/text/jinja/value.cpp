#include "text/jinja/value.h"

#include <algorithm>

#include "fmt/core.h"

#include "text/jinja/functions.h"
#include "text/jinja/python.h"

namespace tandem::jinja {
namespace {

// From this size on a dict keeps an index of its text keys.
constexpr std::size_t kIndexedSize = 9;

int nesting_of(const Value& value) {
  if (const auto* sequence = value.sequence()) return sequence->nesting;
  if (const auto* dict = value.dict()) return dict->nesting();
  if (const auto* callable = value.object<const Callable>()) return callable->nesting;
  return 0;  // a namespace's own chain is cut by the evaluator when the render ends
}

// Keys are scalars, text and tuples of such: equality needs no budget.
bool same_key(const Value& a, const Value& b) {
  if (is_number(a) && is_number(b)) {
    const auto x = as_int(a);
    const auto y = as_int(b);
    return x && y ? *x == *y : as_double(a) == as_double(b);
  }
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->bytes == b.text()->bytes;
  const auto* x = a.sequence();
  const auto* y = b.sequence();
  if (x != nullptr && y != nullptr) {
    return x->kind == y->kind &&
           std::equal(x->items.begin(), x->items.end(), y->items.begin(), y->items.end(), same_key);
  }
  return a.any.index() == b.any.index() && (a.is<None>() || a.is<Undefined>());
}

}  // namespace

std::size_t Dict::position(std::string_view key) const {
  if (entries_.size() >= kIndexedSize) {
    const auto found = by_text_.find(key);
    return found == by_text_.end() ? entries_.size() : found->second;
  }
  const auto has_key = [&](const Entry& entry) {
    const Text* text = entry.first.text();
    return text != nullptr && text->bytes == key;
  };
  return static_cast<std::size_t>(std::find_if(entries_.begin(), entries_.end(), has_key) - entries_.begin());
}

std::size_t Dict::position(const Value& key) const {
  if (const Text* text = key.text()) return position(text->bytes);
  const auto found =
      std::find_if(others_.begin(), others_.end(), [&](std::size_t i) { return same_key(entries_[i].first, key); });
  return found == others_.end() ? entries_.size() : *found;
}

const Value* Dict::find(std::string_view key) const {
  const std::size_t at = position(key);
  return at < entries_.size() ? &entries_[at].second : nullptr;
}

const Value* Dict::find(const Value& key) const {
  const std::size_t at = position(key);
  return at < entries_.size() ? &entries_[at].second : nullptr;
}

void Dict::set(Value key, Value value) {
  nesting_ = std::max({nesting_, 1 + nesting_of(key), 1 + nesting_of(value)});
  if (const std::size_t at = position(key); at < entries_.size()) {
    entries_[at].second = std::move(value);
    return;
  }
  if (key.text() == nullptr) others_.push_back(entries_.size());
  entries_.emplace_back(std::move(key), std::move(value));
  if (entries_.size() < kIndexedSize) return;
  for (std::size_t i = entries_.size() == kIndexedSize ? 0 : entries_.size() - 1; i < entries_.size(); ++i) {
    if (const Text* text = entries_[i].first.text()) by_text_.emplace(text->bytes, i);
  }
}

Value make_undefined(std::string hint) { return {Undefined{std::make_shared<const std::string>(std::move(hint))}}; }

Value make_text(std::string_view bytes, Origin origin) { return {make_text_ptr(bytes, origin)}; }

Result make_text(TextBuilder builder) {
  TANDEM_ASSIGN(auto text, builder.finish());
  return Value{std::move(text)};
}

Value make_int(std::int64_t value) { return {value}; }

Value make_sequence_unchecked(std::vector<Value> items, Sequence::Kind kind) {
  auto sequence = std::make_shared<Sequence>();
  sequence->kind = kind;
  for (const Value& item : items) sequence->nesting = std::max(sequence->nesting, 1 + nesting_of(item));
  sequence->items = std::move(items);
  return {std::move(sequence)};
}

Result make_sequence(std::vector<Value> items, Sequence::Kind kind) {
  if (items.size() > kMaxElements) {
    return absl::ResourceExhaustedError(fmt::format("a list grows beyond {} elements", kMaxElements));
  }
  Value value = make_sequence_unchecked(std::move(items), kind);
  if (value.sequence()->nesting > kMaxNesting) {
    return absl::ResourceExhaustedError(fmt::format("lists are nested deeper than {}", kMaxNesting));
  }
  return value;
}

Result make_dict(Dict dict) {
  if (dict.nesting() > kMaxNesting) {
    return absl::ResourceExhaustedError(fmt::format("dicts are nested deeper than {}", kMaxNesting));
  }
  return Value{std::make_shared<const Dict>(std::move(dict))};
}

}  // namespace tandem::jinja
