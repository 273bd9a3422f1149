// The tests that follow `is`.
#include <algorithm>

#include "fmt/core.h"

#include "text/jinja/eval.h"

namespace tandem::jinja {
namespace {

using Predicate = bool (*)(const Value& value);

template <Predicate kPredicate>
Result is(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("the test", args, {}).status());
  return Value{kPredicate(self)};
}

bool defined(const Value& value) { return !value.undefined(); }
bool undefined(const Value& value) { return value.undefined(); }
bool none(const Value& value) { return value.is<None>(); }
bool boolean(const Value& value) { return value.is<bool>(); }
bool is_true(const Value& value) { return value.is<bool>() && truthy(value); }
bool is_false(const Value& value) { return value.is<bool>() && !truthy(value); }
bool integer(const Value& value) { return value.is<std::int64_t>() || value.is<BigInt>(); }
bool real(const Value& value) { return value.is<double>(); }
bool string(const Value& value) { return value.text() != nullptr; }
bool mapping(const Value& value) { return value.dict() != nullptr; }
bool callable(const Value& value) {
  return value.is<std::shared_ptr<const Callable>>() || value.is<std::shared_ptr<Loop>>() || value.undefined();
}
bool escaped(const Value& value) { return value.text() != nullptr && value.text()->markup; }
bool sequence(const Value& value) {
  return value.undefined() || value.text() != nullptr || value.dict() != nullptr ||
         (value.sequence() != nullptr && value.sequence()->indexable());
}

template <bool kUpper>
Result letters(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("the test", args, {}).status());
  TANDEM_TRY(evaluator.budget().charge(scan_cost(self)));
  TANDEM_ASSIGN(const TextPtr text, to_text(self));
  return Value{has_class(text->bytes, kUpper ? "upper" : "lower").value_or(false)};
}

absl::StatusOr<bool> divides(const Value& value, const Value& divisor, std::int64_t rest, Budget& budget) {
  TANDEM_ASSIGN(const Value modulo, arithmetic(Operator::kModulo, value, divisor, budget));
  return equals(modulo, make_int(rest), budget);
}

template <std::int64_t kRest>
Result parity(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("the test", args, {}).status());
  TANDEM_ASSIGN(const bool holds, divides(self, make_int(2), kRest, evaluator.budget()));
  return Value{holds};
}

enum class Relation : std::uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kSame,
  kDivisible
};

template <Relation kRelation>
Result related(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("the test", args, {"other"}));
  TANDEM_TRY(bound.require(1));
  const Value& other = *bound[0];
  Budget& budget = evaluator.budget();
  bool holds = false;
  switch (kRelation) {
    case Relation::kEqual:
    case Relation::kNotEqual: {
      TANDEM_ASSIGN(holds, equals(self, other, budget));
      return Value{holds == (kRelation == Relation::kEqual)};
    }
    case Relation::kLess:
    case Relation::kLessEqual: {
      TANDEM_ASSIGN(holds, less(self, other, budget));
      break;
    }
    case Relation::kGreater:
    case Relation::kGreaterEqual: {
      TANDEM_ASSIGN(holds, less(other, self, budget));
      break;
    }
    case Relation::kIn: {
      TANDEM_ASSIGN(holds, contains(other, self, budget));
      break;
    }
    case Relation::kSame: {  // identity where there is one, else the same type and value
      const bool object = self.sequence() != nullptr || self.dict() != nullptr || self.object<Namespace>() != nullptr;
      if (object || self.any.index() != other.any.index()) {
        const void* a = self.sequence() != nullptr ? static_cast<const void*>(self.sequence())
                        : self.dict() != nullptr   ? static_cast<const void*>(self.dict())
                                                   : static_cast<const void*>(self.object<Namespace>());
        const void* b = other.sequence() != nullptr ? static_cast<const void*>(other.sequence())
                        : other.dict() != nullptr   ? static_cast<const void*>(other.dict())
                                                    : static_cast<const void*>(other.object<Namespace>());
        return Value{object && a == b};
      }
      TANDEM_ASSIGN(holds, equals(self, other, budget));
      break;
    }
    case Relation::kDivisible: {
      TANDEM_ASSIGN(holds, divides(self, other, 0, budget));
      break;
    }
  }
  if (!holds && (kRelation == Relation::kLessEqual || kRelation == Relation::kGreaterEqual)) {
    TANDEM_ASSIGN(holds, equals(self, other, budget));
  }
  return Value{holds};
}

template <bool kFilter>
Result known(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("the test", args, {}).status());
  if (!hashable(self)) return type_error(fmt::format("{} is no name", type_name(self)));
  const Text* name = self.text();
  return Value{name != nullptr && (kFilter ? find_filter(name->bytes) : find_test(name->bytes)) != nullptr};
}

}  // namespace

Function find_test(std::string_view name) {
  static constexpr std::pair<std::string_view, Function> kTests[] = {{"defined", is<defined>},
                                                                     {"undefined", is<undefined>},
                                                                     {"none", is<none>},
                                                                     {"boolean", is<boolean>},
                                                                     {"true", is<is_true>},
                                                                     {"false", is<is_false>},
                                                                     {"integer", is<integer>},
                                                                     {"float", is<real>},
                                                                     {"number", is<is_number>},
                                                                     {"string", is<string>},
                                                                     {"mapping", is<mapping>},
                                                                     {"iterable", is<iterable>},
                                                                     {"sequence", is<sequence>},
                                                                     {"callable", is<callable>},
                                                                     {"escaped", is<escaped>},
                                                                     {"lower", letters<false>},
                                                                     {"upper", letters<true>},
                                                                     {"odd", parity<1>},
                                                                     {"even", parity<0>},
                                                                     {"divisibleby", related<Relation::kDivisible>},
                                                                     {"sameas", related<Relation::kSame>},
                                                                     {"in", related<Relation::kIn>},
                                                                     {"filter", known<true>},
                                                                     {"test", known<false>},
                                                                     {"==", related<Relation::kEqual>},
                                                                     {"eq", related<Relation::kEqual>},
                                                                     {"equalto", related<Relation::kEqual>},
                                                                     {"!=", related<Relation::kNotEqual>},
                                                                     {"ne", related<Relation::kNotEqual>},
                                                                     {">", related<Relation::kGreater>},
                                                                     {"gt", related<Relation::kGreater>},
                                                                     {"greaterthan", related<Relation::kGreater>},
                                                                     {">=", related<Relation::kGreaterEqual>},
                                                                     {"ge", related<Relation::kGreaterEqual>},
                                                                     {"<", related<Relation::kLess>},
                                                                     {"lt", related<Relation::kLess>},
                                                                     {"lessthan", related<Relation::kLess>},
                                                                     {"<=", related<Relation::kLessEqual>},
                                                                     {"le", related<Relation::kLessEqual>}};
  const auto* found =
      std::find_if(std::begin(kTests), std::end(kTests), [&](const auto& t) { return t.first == name; });
  return found == std::end(kTests) ? nullptr : found->second;
}

}  // namespace tandem::jinja
