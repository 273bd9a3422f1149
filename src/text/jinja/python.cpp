#include "text/jinja/python.h"

#include <algorithm>
#include <cmath>

#include "fmt/core.h"

#include "text/jinja/functions.h"

namespace tandem::jinja {

absl::Status type_error(std::string message) { return absl::InvalidArgumentError(std::move(message)); }

absl::Status undefined_error(const Value& value) {
  const auto* undefined = value.get<Undefined>();
  return type_error(undefined != nullptr && undefined->hint != nullptr ? *undefined->hint : "a value is undefined");
}

std::string_view type_name(const Value& value) {
  if (const auto* sequence = value.sequence()) {
    switch (sequence->kind) {
      case Sequence::Kind::kList: return "list";
      case Sequence::Kind::kTuple: return "tuple";
      case Sequence::Kind::kRange: return "range";
      case Sequence::Kind::kGenerator: return "generator";
      case Sequence::Kind::kItems: return "dict_items";
      case Sequence::Kind::kKeys: return "dict_keys";
      case Sequence::Kind::kValues: return "dict_values";
    }
  }
  constexpr std::string_view kNames[] = {"Undefined", "NoneType", "bool", "int",       "int",      "float",
                                         "str",       "list",     "dict", "Namespace", "function", "LoopContext"};
  return kNames[value.any.index()];
}

bool truthy(const Value& value) {
  if (value.undefined() || value.is<None>()) return false;
  if (is_number(value)) return value.is<BigInt>() || as_double(value) != 0.0;
  if (const auto* text = value.text()) return !text->bytes.empty();
  if (const auto* sequence = value.sequence()) return !sequence->sized() || !sequence->items.empty();
  if (const auto* dict = value.dict()) return !dict->entries().empty();
  return true;
}

bool hashable(const Value& value) {
  if (value.dict() != nullptr) return false;
  const auto* sequence = value.sequence();
  if (sequence == nullptr) return true;
  if (sequence->kind == Sequence::Kind::kRange) return true;
  return sequence->kind == Sequence::Kind::kTuple &&
         std::all_of(sequence->items.begin(), sequence->items.end(), hashable);
}

bool is_number(const Value& value) {
  return value.is<bool>() || value.is<std::int64_t>() || value.is<double>() || value.is<BigInt>();
}

std::optional<std::int64_t> as_int(const Value& value) {
  if (const auto* integer = value.get<std::int64_t>()) return *integer;
  if (const auto* boolean = value.get<bool>()) return *boolean ? 1 : 0;
  return std::nullopt;
}

double as_double(const Value& number) {
  if (const auto* real = number.get<double>()) return *real;
  if (const auto* big = number.get<BigInt>()) return std::strtod(big->digits->c_str(), nullptr);
  return static_cast<double>(as_int(number).value_or(0));
}

std::uint64_t cost(const Value& value) {
  if (const auto* text = value.text()) return text->bytes.size() / 32;
  if (const auto* sequence = value.sequence()) return sequence->items.size();
  if (const auto* dict = value.dict()) return dict->entries().size();
  return 0;
}

std::uint64_t scan_cost(const Value& value) { return value.text() != nullptr ? 4 * cost(value) : cost(value); }

namespace {

enum class Order : std::uint8_t { kLess, kEqual, kGreater, kUnordered };

Order compare_numbers(const Value& a, const Value& b) {
  const auto x = as_int(a);
  const auto y = as_int(b);
  if (x && y) return *x < *y ? Order::kLess : *x == *y ? Order::kEqual : Order::kGreater;
  if (const auto *p = a.get<BigInt>(), *q = b.get<BigInt>(); p != nullptr && q != nullptr && *p->digits == *q->digits) {
    return Order::kEqual;
  }
  // Exact where it matters: beyond 2^53 an int and a float are equal only as Python finds by long division.
  const auto p = static_cast<long double>(x ? static_cast<long double>(*x) : as_double(a));
  const auto q = static_cast<long double>(y ? static_cast<long double>(*y) : as_double(b));
  return p < q ? Order::kLess : p > q ? Order::kGreater : p == q ? Order::kEqual : Order::kUnordered;
}

}  // namespace

absl::StatusOr<bool> equals(const Value& a, const Value& b, Budget& budget) {
  TANDEM_TRY(budget.charge(1));
  if (is_number(a) && is_number(b)) return compare_numbers(a, b) == Order::kEqual;
  if (a.any.index() != b.any.index()) return false;
  if (a.undefined() || a.is<None>()) return true;
  if (const Text* text = a.text()) {
    TANDEM_TRY(budget.charge(cost(a)));
    return text->bytes == b.text()->bytes;
  }
  if (const Sequence* x = a.sequence()) {
    const Sequence* y = b.sequence();
    if (x == y) return true;
    if (x->kind != y->kind || !x->indexable() || x->items.size() != y->items.size()) return false;
    for (std::size_t i = 0; i < x->items.size(); ++i) {
      TANDEM_ASSIGN(const bool same, equals(x->items[i], y->items[i], budget));
      if (!same) return false;
    }
    return true;
  }
  if (const Dict* x = a.dict()) {
    const Dict* y = b.dict();
    if (x == y) return true;
    if (x->entries().size() != y->entries().size()) return false;
    for (const auto& [key, value] : x->entries()) {
      const Value* other = y->find(key);
      if (other == nullptr) return false;
      TANDEM_ASSIGN(const bool same, equals(value, *other, budget));
      if (!same) return false;
    }
    return true;
  }
  if (auto* x = a.object<Namespace>()) return x == b.object<Namespace>();
  if (auto* x = a.object<Loop>()) return x == b.object<Loop>();
  return a.object<const Callable>() == b.object<const Callable>();
}

absl::StatusOr<bool> less(const Value& a, const Value& b, Budget& budget) {
  TANDEM_TRY(budget.charge(1));
  if (a.undefined()) return undefined_error(a);
  if (b.undefined()) return undefined_error(b);
  if (is_number(a) && is_number(b)) return compare_numbers(a, b) == Order::kLess;
  if (a.text() != nullptr && b.text() != nullptr) {  // byte order is code point order
    TANDEM_TRY(budget.charge(std::min(cost(a), cost(b))));
    return a.text()->bytes < b.text()->bytes;
  }
  const Sequence* x = a.sequence();
  const Sequence* y = b.sequence();
  const bool ordered = x != nullptr && y != nullptr && x->kind == y->kind &&
                       (x->kind == Sequence::Kind::kList || x->kind == Sequence::Kind::kTuple);
  if (!ordered) {
    return type_error(fmt::format("'<' is not supported between {} and {}", type_name(a), type_name(b)));
  }
  for (std::size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i) {
    TANDEM_ASSIGN(const bool same, equals(x->items[i], y->items[i], budget));
    if (!same) return less(x->items[i], y->items[i], budget);
  }
  return x->items.size() < y->items.size();
}

absl::StatusOr<bool> contains(const Value& container, const Value& item, Budget& budget) {
  if (const Text* text = container.text()) {
    const Text* part = item.text();
    if (part == nullptr) {
      return type_error(fmt::format("'in <string>' requires a string on the left, not {}", type_name(item)));
    }
    TANDEM_TRY(budget.charge(1 + cost(container)));
    return find_bytes(text->bytes, part->bytes) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) {
    if (!hashable(item)) return type_error(fmt::format("{} cannot be a key", type_name(item)));
    return dict->find(item) != nullptr;
  }
  TANDEM_ASSIGN(Cursor cursor, Cursor::over(container));
  for (Value element; cursor.next(element);) {
    TANDEM_ASSIGN(const bool same, equals(element, item, budget));
    if (same) return true;
  }
  return false;
}

absl::StatusOr<std::size_t> length(const Value& value) {
  if (value.undefined()) return 0;
  if (const auto* text = value.text()) return text->num_chars;
  if (const auto* dict = value.dict()) return dict->entries().size();
  if (const auto* sequence = value.sequence(); sequence != nullptr && sequence->sized()) return sequence->items.size();
  return type_error(fmt::format("{} has no length", type_name(value)));
}

Result item_of(const Value& value, const Value& key) {
  if (value.undefined()) return undefined_error(value);
  if (const Dict* dict = value.dict(); dict != nullptr && hashable(key)) {
    if (const Value* found = dict->find(key)) return *found;
  }
  if (auto index = as_int(key)) {
    const Sequence* sequence = value.sequence();
    const Text* text = value.text();
    const bool indexable = text != nullptr || (sequence != nullptr && sequence->indexable());
    const auto size = static_cast<std::int64_t>(text != nullptr ? text->num_chars
                                                : indexable     ? sequence->items.size()
                                                                : 0);
    if (*index < 0) *index += size;
    if (*index >= 0 && *index < size) {
      if (text == nullptr) return sequence->items[static_cast<std::size_t>(*index)];
      const std::size_t begin = byte_offset(*text, static_cast<std::size_t>(*index));
      return Value{cut(*text, begin, begin + decode(text->bytes, begin).bytes)};
    }
  }
  TextBuilder hint;
  hint.append(fmt::format("{} object has no element ", type_name(value)));
  append_repr(hint, key);
  auto text = hint.finish();
  return make_undefined(text.ok() ? (*text)->bytes.substr(0, 200) : std::string("no such element"));
}

namespace {

absl::StatusOr<std::int64_t> slice_bound(const Value& value, std::int64_t missing) {
  if (value.is<None>()) return missing;
  if (const auto bound = as_int(value)) return *bound;
  if (value.undefined()) return undefined_error(value);
  return type_error(fmt::format("slice indices must be integers or none, not {}", type_name(value)));
}

}  // namespace

Result slice_of(const Value& value, const Value& start, const Value& stop, const Value& step) {
  if (value.undefined()) return undefined_error(value);
  const Text* text = value.text();
  const Sequence* sequence = value.sequence();
  if (text == nullptr && (sequence == nullptr || !sequence->indexable())) {
    return type_error(fmt::format("{} cannot be sliced", type_name(value)));
  }
  const auto size = static_cast<std::int64_t>(text != nullptr ? text->num_chars : sequence->items.size());
  TANDEM_ASSIGN(const std::int64_t stride, slice_bound(step, 1));
  if (stride == 0) return type_error("slice step cannot be zero");
  const std::int64_t lowest = stride < 0 ? -1 : 0;
  const std::int64_t highest = stride < 0 ? size - 1 : size;
  const auto clamp = [&](std::int64_t bound) { return std::clamp(bound < 0 ? bound + size : bound, lowest, highest); };
  TANDEM_ASSIGN(std::int64_t begin, slice_bound(start, 0));
  TANDEM_ASSIGN(std::int64_t end, slice_bound(stop, 0));
  begin = start.is<None>() ? (stride < 0 ? highest : lowest) : clamp(begin);
  end = stop.is<None>() ? (stride < 0 ? lowest : highest) : clamp(end);

  if (text != nullptr && stride == 1) {
    const std::size_t from = byte_offset(*text, static_cast<std::size_t>(begin));
    const std::size_t to = byte_offset(*text, static_cast<std::size_t>(std::max(begin, end)));
    return Value{cut(*text, from, to)};
  }
  std::vector<std::int64_t> picked;
  // The step may be as large as an int64: stop before it overflows.
  for (std::int64_t i = begin; stride < 0 ? i > end : i < end;) {
    picked.push_back(i);
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  if (text == nullptr) {
    std::vector<Value> items;
    items.reserve(picked.size());
    for (const std::int64_t i : picked) items.push_back(sequence->items[static_cast<std::size_t>(i)]);
    const auto kind = sequence->kind == Sequence::Kind::kTuple ? Sequence::Kind::kTuple : Sequence::Kind::kList;
    return make_sequence(std::move(items), kind);
  }
  std::vector<std::size_t> offsets;  // of every code point, and the end
  for (std::size_t at = 0; at < text->bytes.size(); at += decode(text->bytes, at).bytes) offsets.push_back(at);
  offsets.push_back(text->bytes.size());
  TextBuilder out;
  for (const std::int64_t i : picked) {
    out.append(*text, offsets[static_cast<std::size_t>(i)], offsets[static_cast<std::size_t>(i) + 1]);
  }
  TANDEM_ASSIGN(auto result, out.finish(text->markup));
  return Value{std::move(result)};
}

bool iterable(const Value& value) {
  return value.undefined() || value.text() != nullptr || value.sequence() != nullptr || value.dict() != nullptr ||
         value.is<std::shared_ptr<Loop>>();
}

absl::StatusOr<Cursor> Cursor::over(const Value& value) {
  if (!iterable(value) || value.is<std::shared_ptr<Loop>>()) {
    return type_error(fmt::format("{} is not iterable", type_name(value)));
  }
  return Cursor(value);
}

bool Cursor::next(Value& item) {
  if (auto* sequence = owner_.sequence()) {
    std::size_t& at = sequence->sized() ? position_ : sequence->consumed;
    if (at >= sequence->items.size()) return false;
    item = sequence->items[at++];
    return true;
  }
  if (const auto* dict = owner_.dict()) {
    if (position_ >= dict->entries().size()) return false;
    item = dict->entries()[position_++].first;
    return true;
  }
  const auto* text = owner_.text();
  if (text == nullptr || position_ >= text->bytes.size()) return false;
  const std::size_t end = position_ + decode(text->bytes, position_).bytes;
  TextBuilder character;  // of markup too, the characters are plain
  character.append(*text, position_, end);
  item = *make_text(std::move(character));
  position_ = end;
  return true;
}

absl::StatusOr<std::vector<Value>> to_vector(const Value& value, Budget& budget) {
  TANDEM_ASSIGN(Cursor cursor, Cursor::over(value));
  std::vector<Value> items;
  for (Value item; cursor.next(item);) {
    TANDEM_TRY(budget.charge(1));
    items.push_back(std::move(item));
    if (items.size() > kMaxElements) return absl::ResourceExhaustedError("a list grows too long");
  }
  return items;
}

}  // namespace tandem::jinja
