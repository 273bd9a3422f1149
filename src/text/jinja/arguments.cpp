// Binding of arguments, and attributes and elements as Jinja looks them up (jinja/functions.h).
#include <algorithm>

#include "fmt/core.h"

#include "text/jinja/functions.h"
#include "text/jinja/python.h"

namespace tandem::jinja {

absl::StatusOr<Bound> Bound::bind(std::string_view function, const CallArgs& args,
                                  std::initializer_list<std::string_view> parameters) {
  Bound bound;
  bound.function_ = function;
  bound.parameters_ = parameters;
  bound.values_.resize(parameters.size(), nullptr);
  if (args.positional.size() > parameters.size()) {
    return type_error(
        fmt::format("{} takes at most {} arguments, not {}", function, parameters.size(), args.positional.size()));
  }
  for (std::size_t i = 0; i < args.positional.size(); ++i) bound.values_[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    const auto at = static_cast<std::size_t>(std::find(bound.parameters_.begin(), bound.parameters_.end(), name) -
                                             bound.parameters_.begin());
    if (at == parameters.size()) return type_error(fmt::format("{} takes no argument '{}'", function, name));
    if (bound.values_[at] != nullptr) return type_error(fmt::format("{} got '{}' twice", function, name));
    bound.values_[at] = &value;
  }
  return bound;
}

absl::Status Bound::require(std::size_t num_parameters) const {
  for (std::size_t i = 0; i < num_parameters; ++i) {
    if (values_[i] == nullptr) return type_error(fmt::format("{} wants its argument '{}'", function_, parameters_[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> Bound::integer(std::size_t parameter, std::int64_t missing) const {
  const Value* value = values_[parameter];
  if (value == nullptr) return missing;
  if (value->undefined()) return undefined_error(*value);
  if (const auto integer = as_int(*value)) return *integer;
  return type_error(
      fmt::format("{} wants an integer as '{}', not {}", function_, parameters_[parameter], type_name(*value)));
}

bool Bound::truth(std::size_t parameter, bool missing) const {
  return values_[parameter] != nullptr ? truthy(*values_[parameter]) : missing;
}

absl::StatusOr<const Text*> Bound::text(std::size_t parameter) const {
  const Value* value = values_[parameter];
  if (value == nullptr || value->is<None>()) return nullptr;
  if (const Text* text = value->text()) return text;
  return type_error(
      fmt::format("{} wants a string as '{}', not {}", function_, parameters_[parameter], type_name(*value)));
}

Result make_method(const Value& self, std::string_view name, Function function) {
  auto callable = std::make_shared<Callable>();
  callable->name = name;
  callable->function = function;
  callable->self = self;
  const auto* sequence = self.sequence();
  const auto* dict = self.dict();
  callable->nesting = 1 + (sequence != nullptr ? sequence->nesting : dict != nullptr ? dict->nesting() : 0);
  if (callable->nesting > kMaxNesting + 1) return type_error("values are nested too deeply");
  return Value{std::shared_ptr<const Callable>(std::move(callable))};
}

namespace {

// Methods that change a list or dict exist, but templates may not have them.
bool changes(const Value& value, std::string_view name) {
  constexpr std::string_view kOfDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  constexpr std::string_view kOfList[] = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};
  const auto* sequence = value.sequence();
  if (sequence != nullptr && sequence->kind == Sequence::Kind::kList) {
    return std::find(std::begin(kOfList), std::end(kOfList), name) != std::end(kOfList);
  }
  return value.dict() != nullptr && std::find(std::begin(kOfDict), std::end(kOfDict), name) != std::end(kOfDict);
}

// What Python has as an attribute of that name; nullopt: nothing.
absl::StatusOr<std::optional<Value>> own_attribute(const Value& value, std::string_view name) {
  if (auto* names = value.object<Namespace>()) {
    if (const Value* found = names->values.find(name)) return std::optional<Value>(*found);
    return std::optional<Value>();
  }
  if (const Function method = find_method(value, name)) {
    TANDEM_ASSIGN(Value bound, make_method(value, name, method));
    return std::optional<Value>(std::move(bound));
  }
  if (!changes(value, name)) return std::optional<Value>();
  return std::optional<Value>(
      make_undefined(fmt::format("'{}' would change a {}, which a template may not", name, type_name(value))));
}

}  // namespace

Result attribute_of(const Value& value, std::string_view name) {
  if (value.undefined()) return undefined_error(value);
  TANDEM_ASSIGN(auto own, own_attribute(value, name));
  if (own) return *std::move(own);
  if (const Dict* dict = value.dict()) {
    if (const Value* found = dict->find(name)) return *found;
  }
  return make_undefined(fmt::format("{} object has no attribute '{}'", type_name(value), name));
}

Result subscript_of(const Value& value, const Value& key) {
  TANDEM_ASSIGN(Value item, item_of(value, key));
  if (!item.undefined() || key.text() == nullptr) return item;
  TANDEM_ASSIGN(auto own, own_attribute(value, key.text()->bytes));
  if (own) return *std::move(own);
  return item;
}

Result attribute_path(const Value& value, const Value& path, const Value* missing) {
  Value current = value;
  const auto step = [&](const Value& key) -> absl::Status {
    TANDEM_ASSIGN(current, subscript_of(current, key));
    if (current.undefined() && missing != nullptr && !missing->is<None>()) current = *missing;
    return absl::OkStatus();
  };
  const Text* text = path.text();
  if (text == nullptr) {
    if (!path.is<None>()) TANDEM_TRY(step(path));
    return current;
  }
  std::string_view rest = text->bytes;
  constexpr std::size_t kMaxPath = 10'000;  // bytes
  if (rest.size() > kMaxPath) return type_error("the path of an attribute is too long");
  while (true) {
    const std::size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    const bool number =
        !part.empty() && part.size() < 18 && part.find_first_not_of("0123456789") == std::string_view::npos;
    TANDEM_TRY(step(number ? make_int(std::stoll(std::string(part))) : make_text(part)));
    if (dot == std::string_view::npos) return current;
    rest.remove_prefix(dot + 1);
  }
}

}  // namespace tandem::jinja
