// Filters on lists, dicts and other things to iterate over. Generators are made at once, not lazily.
#include <algorithm>

#include "fmt/core.h"

#include "text/jinja/eval.h"

namespace tandem::jinja {
namespace {

using Kind = Sequence::Kind;

// The value to sort or compare by: an attribute, without its case unless that counts.
class Key final {
 public:
  Key(const Value* attribute, bool case_sensitive) : attribute_(attribute), case_sensitive_(case_sensitive) {}

  Result of(const Value& item) const {
    Value key = item;
    if (attribute_ != nullptr) {
      TANDEM_ASSIGN(key, attribute_path(item, *attribute_, nullptr));
    }
    if (case_sensitive_ || key.text() == nullptr) return key;
    TANDEM_ASSIGN(auto lowered, with_case(*key.text(), Case::kLower));
    return Value{std::move(lowered)};
  }

 private:
  const Value* attribute_;
  bool case_sensitive_;
};

struct Keyed {
  Value key;
  Value item;
};

absl::Status sort_by_key(std::vector<Keyed>& items, bool reverse, Budget& budget) {
  absl::Status failure;
  const auto before = [&](const Keyed& a, const Keyed& b) {
    if (!failure.ok()) return false;
    const auto result = reverse ? less(b.key, a.key, budget) : less(a.key, b.key, budget);
    if (!result.ok()) failure = result.status();
    return result.ok() && *result;
  };
  std::stable_sort(items.begin(), items.end(), before);
  return failure;
}

Result sort(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("sort", args, {"reverse", "case_sensitive", "attribute"}));
  TANDEM_ASSIGN(auto items, to_vector(self, evaluator.budget()));
  // "a,b" sorts by a, then by b.
  std::vector<Value> attributes;
  if (bound[2] != nullptr && bound[2]->text() != nullptr) {
    for (const auto& part : split(*bound[2]->text(), make_text_ptr(",").get(), -1)) attributes.push_back({part});
  } else {
    attributes.push_back(bound[2] != nullptr ? *bound[2] : Value{None{}});
  }
  std::vector<Keyed> keyed;
  for (Value& item : items) {
    std::vector<Value> keys;
    for (const Value& attribute : attributes) {
      TANDEM_ASSIGN(Value key, Key(&attribute, bound.truth(1, false)).of(item));
      keys.push_back(std::move(key));
    }
    TANDEM_ASSIGN(Value key, make_sequence(std::move(keys)));
    keyed.push_back({.key = std::move(key), .item = std::move(item)});
  }
  TANDEM_TRY(sort_by_key(keyed, bound.truth(0, false), evaluator.budget()));
  std::vector<Value> sorted;
  for (Keyed& entry : keyed) sorted.push_back(std::move(entry.item));
  return make_sequence(std::move(sorted));
}

Result pairs_of(const Dict& dict, Kind kind) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict.entries()) {
    TANDEM_ASSIGN(Value pair, make_sequence({key, value}, Kind::kTuple));
    pairs.push_back(std::move(pair));
  }
  return make_sequence(std::move(pairs), kind);
}

Result dict_sort(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("dictsort", args, {"case_sensitive", "by", "reverse"}));
  TANDEM_ASSIGN(const Text* by, bound.text(1));
  if (by != nullptr && by->bytes != "key" && by->bytes != "value") return type_error("dictsort is by key or by value");
  if (self.undefined()) return undefined_error(self);
  if (self.dict() == nullptr) return type_error(fmt::format("dictsort wants a mapping, not {}", type_name(self)));
  TANDEM_ASSIGN(const Value pairs, pairs_of(*self.dict(), Kind::kList));
  const std::size_t part = by != nullptr && by->bytes == "value" ? 1 : 0;
  std::vector<Keyed> keyed;
  for (const Value& pair : pairs.sequence()->items) {
    TANDEM_ASSIGN(Value key, Key(nullptr, bound.truth(0, false)).of(pair.sequence()->items[part]));
    keyed.push_back({.key = std::move(key), .item = pair});
  }
  TANDEM_TRY(sort_by_key(keyed, bound.truth(2, false), evaluator.budget()));
  std::vector<Value> sorted;
  for (Keyed& entry : keyed) sorted.push_back(std::move(entry.item));
  return make_sequence(std::move(sorted));
}

template <bool kLargest>
Result extreme(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind(kLargest ? "max" : "min", args, {"case_sensitive", "attribute"}));
  TANDEM_ASSIGN(const auto items, to_vector(self, evaluator.budget()));
  if (items.empty()) return make_undefined("there is no element, the sequence is empty");
  const Key key_of(bound[1], bound.truth(0, false));
  std::size_t best = 0;
  TANDEM_ASSIGN(Value best_key, key_of.of(items[0]));
  for (std::size_t i = 1; i < items.size(); ++i) {
    TANDEM_ASSIGN(Value key, key_of.of(items[i]));
    TANDEM_ASSIGN(const bool better,
                  kLargest ? less(best_key, key, evaluator.budget()) : less(key, best_key, evaluator.budget()));
    if (!better) continue;
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}

Result unique(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("unique", args, {"case_sensitive", "attribute"}));
  TANDEM_ASSIGN(const auto items, to_vector(self, evaluator.budget()));
  const Key key_of(bound[1], bound.truth(0, false));
  Dict seen;
  std::vector<Value> result;
  for (const Value& item : items) {
    TANDEM_ASSIGN(Value key, key_of.of(item));
    if (!hashable(key)) return type_error(fmt::format("unique cannot compare a {}", type_name(key)));
    // Keys that are no text are searched one by one.
    TANDEM_TRY(evaluator.budget().charge(key.text() != nullptr ? 1 : 1 + seen.entries().size()));
    if (seen.find(key) != nullptr) continue;
    seen.set(std::move(key), Value{true});
    result.push_back(item);
  }
  return make_sequence(std::move(result), Kind::kGenerator);
}

Result join(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("join", args, {"d", "attribute"}));
  TextPtr separator = make_text_ptr("");
  if (bound[0] != nullptr) {
    TANDEM_ASSIGN(separator, to_text(*bound[0]));
  }
  TANDEM_ASSIGN(Cursor cursor, Cursor::over(self));
  TextBuilder out;
  bool first = true;
  for (Value item; cursor.next(item) && !out.full(); first = false) {
    if (bound[1] != nullptr && !bound[1]->is<None>()) {
      TANDEM_ASSIGN(item, attribute_path(item, *bound[1], nullptr));
    }
    TANDEM_ASSIGN(const TextPtr text, to_text(item));
    TANDEM_TRY(evaluator.budget().charge(1 + (text->bytes.size() + separator->bytes.size()) / 32));
    if (!first) out.append(*separator);
    out.append(*text);
  }
  return make_text(std::move(out));
}

Result length_filter(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("length", args, {}).status());
  TANDEM_ASSIGN(const std::size_t size, length(self));
  return make_int(static_cast<std::int64_t>(size));
}

Result first(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("first", args, {}).status());
  TANDEM_ASSIGN(Cursor cursor, Cursor::over(self));
  Value item;
  if (!cursor.next(item)) return make_undefined("there is no first element, the sequence is empty");
  return item;
}

absl::StatusOr<std::vector<Value>> reversed(Evaluator& evaluator, const Value& self) {
  if (self.sequence() != nullptr && !self.sequence()->sized()) return type_error("a generator cannot be reversed");
  TANDEM_ASSIGN(auto items, to_vector(self, evaluator.budget()));
  std::reverse(items.begin(), items.end());
  return items;
}

Result last(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("last", args, {}).status());
  TANDEM_ASSIGN(auto items, reversed(evaluator, self));
  if (items.empty()) return make_undefined("there is no last element, the sequence is empty");
  return std::move(items.front());
}

Result reverse(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("reverse", args, {}).status());
  if (self.text() != nullptr) return slice_of(self, {None{}}, {None{}}, make_int(-1));
  TANDEM_ASSIGN(auto items, to_vector(self, evaluator.budget()));
  std::reverse(items.begin(), items.end());
  const bool was_generator = self.sequence() != nullptr && !self.sequence()->sized();
  return make_sequence(std::move(items), was_generator ? Kind::kList : Kind::kGenerator);
}

Result list(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("list", args, {}).status());
  TANDEM_ASSIGN(auto items, to_vector(self, evaluator.budget()));
  return make_sequence(std::move(items));
}

Result items_filter(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("items", args, {}).status());
  if (self.undefined()) return make_sequence({}, Kind::kGenerator);
  if (self.dict() == nullptr) return type_error(fmt::format("items wants a mapping, not {}", type_name(self)));
  return pairs_of(*self.dict(), Kind::kGenerator);
}

Result sum(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("sum", args, {"attribute", "start"}));
  Value total = bound[1] != nullptr ? *bound[1] : make_int(0);
  if (total.text() != nullptr) return type_error("sum adds no strings; use join");
  TANDEM_ASSIGN(Cursor cursor, Cursor::over(self));
  for (Value item; cursor.next(item);) {
    if (bound[0] != nullptr && !bound[0]->is<None>()) {
      TANDEM_ASSIGN(item, attribute_path(item, *bound[0], nullptr));
    }
    TANDEM_TRY(evaluator.budget().charge(1));
    TANDEM_ASSIGN(total, arithmetic(Operator::kAdd, total, item, evaluator.budget()));
  }
  return total;
}

Result batch(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("batch", args, {"linecount", "fill_with"}));
  TANDEM_TRY(bound.require(1));
  TANDEM_ASSIGN(const std::int64_t count, bound.integer(0, 1));
  TANDEM_ASSIGN(auto items, to_vector(self, evaluator.budget()));
  std::vector<Value> rows;
  std::vector<Value> row;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (static_cast<std::int64_t>(row.size()) == count) {
      TANDEM_ASSIGN(Value full, make_sequence(std::exchange(row, {})));
      rows.push_back(std::move(full));
    }
    row.push_back(std::move(items[i]));
  }
  if (!row.empty()) {
    const bool fills = bound[1] != nullptr && !bound[1]->is<None>();
    while (fills && static_cast<std::int64_t>(row.size()) < count && row.size() <= kMaxElements) {
      row.push_back(*bound[1]);
    }
    TANDEM_ASSIGN(Value rest, make_sequence(std::move(row)));
    rows.push_back(std::move(rest));
  }
  return make_sequence(std::move(rows), Kind::kGenerator);
}

Result slice_filter(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("slice", args, {"slices", "fill_with"}));
  TANDEM_TRY(bound.require(1));
  TANDEM_ASSIGN(const std::int64_t slices, bound.integer(0, 1));
  TANDEM_ASSIGN(const auto items, to_vector(self, evaluator.budget()));
  if (slices == 0) return type_error("integer division or modulo by zero");
  TANDEM_TRY(evaluator.budget().charge(static_cast<std::uint64_t>(std::max<std::int64_t>(slices, 0))));
  const auto size = static_cast<std::int64_t>(items.size());
  std::vector<Value> columns;
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < slices; ++i) {
    const bool extra = i < size % slices;
    const std::int64_t end = begin + size / slices + (extra ? 1 : 0);
    std::vector<Value> column(items.begin() + begin, items.begin() + end);
    if (!extra && bound[1] != nullptr && !bound[1]->is<None>()) column.push_back(*bound[1]);
    TANDEM_ASSIGN(Value made, make_sequence(std::move(column)));
    columns.push_back(std::move(made));
    begin = end;
  }
  return make_sequence(std::move(columns), Kind::kGenerator);
}

Result attribute(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("attr", args, {"name"}));
  TANDEM_TRY(bound.require(1));
  TANDEM_ASSIGN(const Text* name, bound.text(0));
  if (name == nullptr) return type_error("attr wants a string");
  // Elements of a dict are not attributes here.
  if (self.dict() != nullptr && find_method(self, name->bytes) == nullptr) {
    return make_undefined(fmt::format("dict object has no attribute '{}'", name->bytes));
  }
  return attribute_of(self, name->bytes);
}

CallArgs rest_of(const CallArgs& args, std::size_t first) {
  CallArgs rest = args;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(std::min(first, rest.positional.size())));
  return rest;
}

Result map(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  std::vector<Value> mapped;
  if (!truthy(self)) return make_sequence({}, Kind::kGenerator);
  TANDEM_ASSIGN(const auto items, to_vector(self, evaluator.budget()));
  if (args.positional.empty()) {
    TANDEM_ASSIGN(const Bound bound, Bound::bind("map", args, {"attribute", "default"}));
    if (bound[0] == nullptr) return type_error("map wants a filter or an attribute");
    for (const Value& item : items) {
      TANDEM_ASSIGN(Value value, attribute_path(item, *bound[0], bound[1]));
      mapped.push_back(std::move(value));
    }
    return make_sequence(std::move(mapped), Kind::kGenerator);
  }
  const Text* name = args.positional.front().text();
  const Function filter = name != nullptr ? find_filter(name->bytes) : nullptr;
  if (filter == nullptr) return type_error(fmt::format("map: no filter '{}'", name != nullptr ? name->bytes : ""));
  const CallArgs rest = rest_of(args, 1);
  for (const Value& item : items) {
    TANDEM_TRY(evaluator.budget().charge(1 + scan_cost(item)));
    TANDEM_ASSIGN(Value value, filter(evaluator, item, rest));
    TANDEM_TRY(evaluator.budget().charge(cost(value)));
    mapped.push_back(std::move(value));
  }
  return make_sequence(std::move(mapped), Kind::kGenerator);
}

enum class By : std::uint8_t { kItem, kAttribute };

template <By kBy, bool kKeep>
Result choose(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  if (!truthy(self)) return make_sequence({}, Kind::kGenerator);
  constexpr std::size_t kTestAt = kBy == By::kAttribute ? 1 : 0;
  if (args.positional.size() < kTestAt) return type_error("the name of the attribute is missing");
  Function test = nullptr;
  if (args.positional.size() > kTestAt) {
    const Text* name = args.positional[kTestAt].text();
    test = name != nullptr ? find_test(name->bytes) : nullptr;
    if (test == nullptr) return type_error(fmt::format("no test '{}'", name != nullptr ? name->bytes : ""));
  }
  const CallArgs rest = rest_of(args, kTestAt + 1);
  TANDEM_ASSIGN(const auto items, to_vector(self, evaluator.budget()));
  std::vector<Value> chosen;
  for (const Value& item : items) {
    TANDEM_TRY(evaluator.budget().charge(1));
    Value tested = item;
    if (kBy == By::kAttribute) {
      TANDEM_ASSIGN(tested, attribute_path(item, args.positional.front(), nullptr));
    }
    if (test != nullptr) {
      TANDEM_ASSIGN(tested, test(evaluator, tested, rest));
    }
    if (truthy(tested) == kKeep) chosen.push_back(item);
  }
  return make_sequence(std::move(chosen), Kind::kGenerator);
}

}  // namespace

Function find_list_filter(std::string_view name) {
  static constexpr std::pair<std::string_view, Function> kFilters[] = {{"attr", attribute},
                                                                       {"batch", batch},
                                                                       {"count", length_filter},
                                                                       {"dictsort", dict_sort},
                                                                       {"first", first},
                                                                       {"items", items_filter},
                                                                       {"join", join},
                                                                       {"last", last},
                                                                       {"length", length_filter},
                                                                       {"list", list},
                                                                       {"map", map},
                                                                       {"max", extreme<true>},
                                                                       {"min", extreme<false>},
                                                                       {"reject", choose<By::kItem, false>},
                                                                       {"rejectattr", choose<By::kAttribute, false>},
                                                                       {"reverse", reverse},
                                                                       {"select", choose<By::kItem, true>},
                                                                       {"selectattr", choose<By::kAttribute, true>},
                                                                       {"slice", slice_filter},
                                                                       {"sort", sort},
                                                                       {"sum", sum},
                                                                       {"unique", unique}};
  const auto* found =
      std::find_if(std::begin(kFilters), std::end(kFilters), [&](const auto& f) { return f.first == name; });
  return found == std::end(kFilters) ? nullptr : found->second;
}

}  // namespace tandem::jinja
