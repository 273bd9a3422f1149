// Global functions, and methods of dicts, lists and loops.
#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>

#include "fmt/core.h"

#include "text/jinja/eval.h"

namespace tandem::jinja {
namespace {

using Kind = Sequence::Kind;

constexpr std::int64_t kMaxRange = 100'000;  // Jinja's sandbox has the same

Result range(Evaluator& evaluator, const Value&, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("range", args, {"start", "stop", "step"}));
  TANDEM_TRY(bound.require(1));
  if (!args.named.empty()) return type_error("range takes no named arguments");
  std::array<std::int64_t, 3> bounds{};
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    TANDEM_ASSIGN(bounds[i], bound.integer(i, i == 2 ? 1 : 0));
  }
  auto [start, stop, step] = bounds;
  if (bound[1] == nullptr) stop = std::exchange(start, 0);
  if (step == 0) return type_error("range's step cannot be zero");
  std::vector<Value> items;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<std::int64_t>(items.size()) == kMaxRange) {
      return type_error(fmt::format("a range of more than {} elements", kMaxRange));
    }
    items.push_back(make_int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  TANDEM_TRY(evaluator.budget().charge(items.size()));
  TANDEM_ASSIGN(Value made, make_sequence(std::move(items), Kind::kRange));
  made.sequence()->label =
      step == 1 ? fmt::format("range({}, {})", start, stop) : fmt::format("range({}, {}, {})", start, stop, step);
  return made;
}

// A mapping or pairs, then the named arguments.
absl::StatusOr<Dict> make_entries(Evaluator& evaluator, const CallArgs& args) {
  if (args.positional.size() > 1) return type_error("at most one positional argument is expected");
  Dict dict;
  if (!args.positional.empty()) {
    const Value& source = args.positional.front();
    if (source.undefined()) return undefined_error(source);
    if (source.dict() != nullptr) {
      dict = *source.dict();
    } else {
      TANDEM_ASSIGN(const auto pairs, to_vector(source, evaluator.budget()));
      for (const Value& pair : pairs) {
        TANDEM_ASSIGN(const auto parts, to_vector(pair, evaluator.budget()));
        if (parts.size() != 2 || !hashable(parts[0])) return type_error("pairs of a key and a value are expected");
        TANDEM_TRY(evaluator.budget().charge(parts[0].text() != nullptr ? 1 : 1 + dict.entries().size()));
        dict.set(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : args.named) dict.set(make_text(name), value);
  return dict;
}

Result dict_global(Evaluator& evaluator, const Value&, const CallArgs& args) {
  TANDEM_ASSIGN(Dict dict, make_entries(evaluator, args));
  return make_dict(std::move(dict));
}

Result namespace_global(Evaluator& evaluator, const Value&, const CallArgs& args) {
  TANDEM_ASSIGN(Dict dict, make_entries(evaluator, args));
  for (const auto& [key, value] : dict.entries()) {
    if (key.text() != nullptr && key.text()->bytes.rfind('_', 0) == 0) {
      return type_error("names of a namespace cannot begin with '_'");
    }
  }
  return evaluator.make_namespace(std::move(dict));
}

Result raise_exception(Evaluator& evaluator, const Value&, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("raise_exception", args, {"message"}));
  TANDEM_TRY(bound.require(1));
  TANDEM_ASSIGN(const TextPtr text, to_text(*bound[0]));
  return evaluator.raise(text->bytes);
}

Result strftime_now(Evaluator& evaluator, const Value&, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("strftime_now", args, {"format"}));
  TANDEM_TRY(bound.require(1));
  TANDEM_ASSIGN(const Text* format, bound.text(0));
  if (format == nullptr) return type_error("strftime_now wants a format");
  const std::time_t seconds = std::chrono::system_clock::to_time_t(evaluator.now());
  std::tm local{};
  if (localtime_r(&seconds, &local) == nullptr) return type_error("the time cannot be read");
  std::array<char, 1024> buffer{};
  // A result may be empty; the mark tells that from one that does not fit.
  const std::size_t size = std::strftime(buffer.data(), buffer.size(), (format->bytes + "|").c_str(), &local);
  if (size == 0) return type_error("strftime_now's result is too long");
  return make_text(std::string_view(buffer.data(), size - 1));
}

Result dict_get(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("get", args, {"key", "default"}));
  TANDEM_TRY(bound.require(1));
  if (!args.named.empty()) return type_error("get takes no named arguments");
  if (!hashable(*bound[0])) return type_error(fmt::format("{} cannot be a key", type_name(*bound[0])));
  if (const Value* found = self.dict()->find(*bound[0])) return *found;
  return bound[1] != nullptr ? *bound[1] : Value{None{}};
}

template <Kind kKind>
Result dict_view(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("the method", args, {}).status());
  std::vector<Value> items;
  items.reserve(self.dict()->entries().size());
  for (const auto& [key, value] : self.dict()->entries()) {
    if (kKind == Kind::kItems) {
      TANDEM_ASSIGN(Value pair, make_sequence({key, value}, Kind::kTuple));
      items.push_back(std::move(pair));
    } else {
      items.push_back(kKind == Kind::kKeys ? key : value);
    }
  }
  return make_sequence(std::move(items), kKind);
}

// Lists and dicts do not change: a copy is the thing itself.
Result copy(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("copy", args, {}).status());
  return self;
}

Result float_is_integer(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("is_integer", args, {}).status());
  return Value{std::isfinite(as_double(self)) && as_double(self) == std::trunc(as_double(self))};
}

Result list_index(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("index", args, {"value"}));
  TANDEM_TRY(bound.require(1));
  const auto& items = self.sequence()->items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    TANDEM_ASSIGN(const bool same, equals(items[i], *bound[0], evaluator.budget()));
    if (same) return make_int(static_cast<std::int64_t>(i));
  }
  return type_error("the value is not in the list");
}

Result list_count(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("count", args, {"value"}));
  TANDEM_TRY(bound.require(1));
  std::int64_t count = 0;
  for (const Value& item : self.sequence()->items) {
    TANDEM_ASSIGN(const bool same, equals(item, *bound[0], evaluator.budget()));
    count += same ? 1 : 0;
  }
  return make_int(count);
}

Result loop_cycle(Evaluator&, const Value& self, const CallArgs& args) {
  if (args.positional.empty()) return type_error("cycle wants at least one value");
  const auto index = static_cast<std::size_t>(self.object<Loop>()->index0);
  return args.positional[index % args.positional.size()];
}

Result loop_changed(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  Loop& loop = *self.object<Loop>();
  bool same = loop.changed.has_value() && loop.changed->size() == args.positional.size();
  for (std::size_t i = 0; same && i < args.positional.size(); ++i) {
    TANDEM_ASSIGN(same, equals((*loop.changed)[i], args.positional[i], evaluator.budget()));
  }
  if (!same) loop.changed = args.positional;
  return Value{!same};
}

template <std::size_t kSize>
Function find_in(const std::pair<std::string_view, Function> (&table)[kSize], std::string_view name) {
  const auto* found = std::find_if(std::begin(table), std::end(table), [&](const auto& f) { return f.first == name; });
  return found == std::end(table) ? nullptr : found->second;
}

}  // namespace

Function find_global(std::string_view name) {
  static constexpr std::pair<std::string_view, Function> kGlobals[] = {{"dict", dict_global},
                                                                       {"namespace", namespace_global},
                                                                       {"raise_exception", raise_exception},
                                                                       {"range", range},
                                                                       {"strftime_now", strftime_now}};
  return find_in(kGlobals, name);
}

Function find_method(const Value& value, std::string_view name) {
  static constexpr std::pair<std::string_view, Function> kOfDict[] = {{"copy", copy},
                                                                      {"get", dict_get},
                                                                      {"items", dict_view<Kind::kItems>},
                                                                      {"keys", dict_view<Kind::kKeys>},
                                                                      {"values", dict_view<Kind::kValues>}};
  static constexpr std::pair<std::string_view, Function> kOfList[] = {{"count", list_count}, {"index", list_index}};
  static constexpr std::pair<std::string_view, Function> kOfLoop[] = {{"changed", loop_changed}, {"cycle", loop_cycle}};
  if (value.text() != nullptr) return find_text_method(name);
  if (value.dict() != nullptr) return find_in(kOfDict, name);
  if (value.object<Loop>() != nullptr) return find_in(kOfLoop, name);
  if (value.is<double>()) return name == "is_integer" ? float_is_integer : nullptr;
  const auto* sequence = value.sequence();
  if (sequence == nullptr || !sequence->indexable()) return nullptr;
  if (name == "copy" && sequence->kind == Kind::kList) return copy;
  return find_in(kOfList, name);
}

}  // namespace tandem::jinja
