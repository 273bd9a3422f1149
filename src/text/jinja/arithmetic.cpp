// Operators of jinja/python.h: + - * / // % ** on numbers, text and lists.
#include <cmath>

#include "fmt/core.h"

#include "text/jinja/python.h"

namespace tandem::jinja {
namespace {

constexpr std::string_view kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};

absl::Status unsupported(Operator op, const Value& a, const Value& b) {
  return type_error(fmt::format("'{}' is not supported between {} and {}", kSigns[static_cast<std::size_t>(op)],
                                type_name(a), type_name(b)));
}

absl::Status overflow() { return type_error("an integer grows beyond 64 bits"); }

Result integer_power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return overflow();
  }
  return make_int(result);
}

Result integers(Operator op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  switch (op) {
    case Operator::kAdd:
      if (__builtin_add_overflow(a, b, &result)) return overflow();
      return make_int(result);
    case Operator::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) return overflow();
      return make_int(result);
    case Operator::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) return overflow();
      return make_int(result);
    case Operator::kFloorDivide:
    case Operator::kModulo: {
      if (b == 0) return type_error("integer division or modulo by zero");
      if (b == -1) {  // INT64_MIN / -1 traps
        if (op == Operator::kModulo) return make_int(0);
        return negate(make_int(a));
      }
      const bool rounds_up = a % b != 0 && (a < 0) != (b < 0);
      return make_int(op == Operator::kModulo ? a % b + (rounds_up ? b : 0) : a / b - (rounds_up ? 1 : 0));
    }
    case Operator::kDivide:
      if (b == 0) return type_error("division by zero");
      return Value{static_cast<double>(a) / static_cast<double>(b)};
    case Operator::kPower:
      if (b >= 0) return integer_power(a, b);
      if (a == 0) return type_error("0 cannot be raised to a negative power");
      return Value{std::pow(static_cast<double>(a), static_cast<double>(b))};
  }
  return overflow();
}

Result floats(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd: return Value{a + b};
    case Operator::kSubtract: return Value{a - b};
    case Operator::kMultiply: return Value{a * b};
    case Operator::kDivide:
      if (b == 0) return type_error("division by zero");
      return Value{a / b};
    case Operator::kFloorDivide:
    case Operator::kModulo: {
      if (b == 0) return type_error("float division or modulo by zero");
      double rest = std::fmod(a, b);
      double quotient = (a - rest) / b;
      if (rest != 0 && (b < 0) != (rest < 0)) {
        rest += b;
        quotient -= 1.0;
      }
      if (op == Operator::kModulo) return Value{rest == 0 ? std::copysign(0.0, b) : rest};
      if (quotient == 0) return Value{std::copysign(0.0, a / b)};
      const double floor = std::floor(quotient);
      return Value{quotient - floor > 0.5 ? floor + 1.0 : floor};
    }
    case Operator::kPower: {
      if (a == 0 && b < 0) return type_error("0.0 cannot be raised to a negative power");
      const double power = std::pow(a, b);
      if (std::isfinite(a) && std::isfinite(b) && !std::isfinite(power)) {
        return type_error("the result of '**' is too large or not a real number");
      }
      return Value{power};
    }
  }
  return overflow();
}

Result repeat(const Value& value, std::int64_t count, Budget& budget) {
  count = std::max<std::int64_t>(count, 0);
  if (const Text* text = value.text()) {
    TextBuilder out;
    out.append_repeated(*text, static_cast<std::uint64_t>(count));
    TANDEM_ASSIGN(auto result, out.finish(text->markup));
    return Value{std::move(result)};
  }
  const Sequence& sequence = *value.sequence();
  std::vector<Value> items;
  for (std::int64_t i = 0; i < count && !sequence.items.empty(); ++i) {
    TANDEM_TRY(budget.charge(sequence.items.size()));
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
    if (items.size() > kMaxElements) break;  // make_sequence refuses it
  }
  return make_sequence(std::move(items), sequence.kind);
}

bool repeatable(const Value& value) {
  const Sequence* sequence = value.sequence();
  return value.text() != nullptr ||
         (sequence != nullptr && (sequence->kind == Sequence::Kind::kList || sequence->kind == Sequence::Kind::kTuple));
}

Result concatenate(const Value& a, const Value& b, Budget& budget) {
  if (const Text* left = a.text()) {
    const Text* right = b.text();
    TANDEM_TRY(budget.charge(cost(a) + cost(b)));
    TextBuilder out;
    // Markup escapes what plain text it is joined with, whichever side that is.
    TextPtr escaped;
    if (left->markup != right->markup) {
      TANDEM_ASSIGN(escaped, html_escaped(left->markup ? *right : *left));
      (left->markup ? right : left) = escaped.get();
    }
    out.append(*left);
    out.append(*right);
    TANDEM_ASSIGN(auto result, out.finish(left->markup || right->markup));
    return Value{std::move(result)};
  }
  std::vector<Value> items = a.sequence()->items;
  items.insert(items.end(), b.sequence()->items.begin(), b.sequence()->items.end());
  TANDEM_TRY(budget.charge(items.size()));
  return make_sequence(std::move(items), a.sequence()->kind);
}

}  // namespace

Result arithmetic(Operator op, const Value& a, const Value& b, Budget& budget) {
  if (op == Operator::kModulo && a.text() != nullptr) return percent_format(*a.text(), b);
  if (a.undefined()) return undefined_error(a);
  if (b.undefined()) return undefined_error(b);
  if (is_number(a) && is_number(b)) {
    if (a.is<BigInt>() || b.is<BigInt>()) return overflow();
    const auto x = as_int(a);
    const auto y = as_int(b);
    return x && y ? integers(op, *x, *y) : floats(op, as_double(a), as_double(b));
  }
  if (op == Operator::kAdd && repeatable(a) && a.any.index() == b.any.index() &&
      (a.text() != nullptr || a.sequence()->kind == b.sequence()->kind)) {
    return concatenate(a, b, budget);
  }
  if (op == Operator::kMultiply && repeatable(a) && as_int(b)) return repeat(a, *as_int(b), budget);
  if (op == Operator::kMultiply && repeatable(b) && as_int(a)) return repeat(b, *as_int(a), budget);
  return unsupported(op, a, b);
}

Result negate(const Value& value) {
  if (value.undefined()) return undefined_error(value);
  if (const auto* real = value.get<double>()) return Value{-*real};
  const auto integer = as_int(value);
  if (!integer) return type_error(fmt::format("unary '-' is not supported for {}", type_name(value)));
  if (*integer == INT64_MIN) return overflow();
  return make_int(-*integer);
}

}  // namespace tandem::jinja
