// The built-in filters, tests, methods and globals, by name, and how arguments are bound to them.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace tandem::jinja {

class Evaluator;
class Scope;
struct Macro;

struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// `self` is what a filter, test or method is applied to.
using Function = Result (*)(Evaluator& evaluator, const Value& self, const CallArgs& args);

// What a call expression can call: a built-in with its object, or a macro with the scope it was defined in.
struct Callable {
  std::string name;
  Function function = nullptr;
  Value self;
  const Macro* macro = nullptr;
  std::shared_ptr<Scope> scope;  // shared with the evaluator's running scopes; emptied when the render ends
  int nesting = 0;
};

// Null when there is none.
Function find_filter(std::string_view name);
Function find_text_filter(std::string_view name);
Function find_list_filter(std::string_view name);
Function find_test(std::string_view name);
Function find_global(std::string_view name);
Function find_method(const Value& value, std::string_view name);
Function find_text_method(std::string_view name);
Result make_method(const Value& self, std::string_view name, Function function);

// Arguments by parameter, in the order of their names; null where not given.
class Bound final {
 public:
  static absl::StatusOr<Bound> bind(std::string_view function, const CallArgs& args,
                                    std::initializer_list<std::string_view> parameters);
  const Value* operator[](std::size_t parameter) const { return values_[parameter]; }
  const Value& or_undefined(std::size_t parameter) const;
  absl::Status require(std::size_t num_parameters) const;  // the first ones are given

  // Typed readers: the default where not given, an error where of another type.
  absl::StatusOr<std::int64_t> integer(std::size_t parameter, std::int64_t missing) const;
  bool truth(std::size_t parameter, bool missing) const;
  // Null where not given or none.
  absl::StatusOr<const Text*> text(std::size_t parameter) const;

 private:
  std::string_view function_;
  std::vector<std::string_view> parameters_;
  std::vector<const Value*> values_;
};

// value.name, as Jinja looks it up: what Python has as an attribute, else the element of that name.
Result attribute_of(const Value& value, std::string_view name);
// value[key] as Jinja looks it up: the element, else the attribute.
Result subscript_of(const Value& value, const Value& key);
// "a.0.b" from `value` on, as the `attribute` argument of filters reads it.
Result attribute_path(const Value& value, const Value& path, const Value* missing);

}  // namespace tandem::jinja
