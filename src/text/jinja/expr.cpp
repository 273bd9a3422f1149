// Expressions and calls of jinja/eval.h.
#include <algorithm>

#include "fmt/core.h"

#include "text/jinja/eval.h"
#include "text/jinja/render_guards.h"

namespace tandem::jinja {

Value Evaluator::lookup(NameId id) const {
  if (const Value* value = scope_->find(id)) return *value;
  const std::string& name = template_.names[id];
  if (const Function function = find_global(name)) {
    auto callable = std::make_shared<Callable>();
    callable->name = name;
    callable->function = function;
    return {std::shared_ptr<const Callable>(std::move(callable))};
  }
  return make_undefined(fmt::format("'{}' is undefined", name));
}

Result Evaluator::eval(const Expr& expr) {
  TANDEM_TRY(budget_.charge(1));
  if (expr.kind == Expr::Kind::kConst) return expr.constant;
  if (expr.kind == Expr::Kind::kName) return eval_name(expr);
  if (depth_ >= limits_.max_depth) {
    return absl::ResourceExhaustedError("macros, loops and expressions are nested too deeply");
  }
  ++depth_;
  Result result = eval_node(expr);
  --depth_;
  return result;
}

Result Evaluator::eval_node(const Expr& expr) {
  switch (expr.kind) {
    case Expr::Kind::kConst: return expr.constant;
    case Expr::Kind::kName: return eval_name(expr);
    case Expr::Kind::kTuple:
    case Expr::Kind::kList: return eval_items(expr);
    case Expr::Kind::kDict: return eval_dict(expr);
    case Expr::Kind::kAttribute: return eval_attribute(expr);
    case Expr::Kind::kSlice: return eval_slice(expr);
    case Expr::Kind::kCall: return eval_call(expr);
    case Expr::Kind::kFilter: return eval_filter(expr);
    case Expr::Kind::kTest: return eval_test(expr);
    case Expr::Kind::kConcat: return eval_concat(expr);
    case Expr::Kind::kCompare: return eval_compare(expr);
    case Expr::Kind::kConditional: return eval_conditional(expr);
    case Expr::Kind::kSubscript: {
      TANDEM_ASSIGN(const Value base, eval_base(*expr.args[0]));
      TANDEM_ASSIGN(const Value key, eval(*expr.args[1]));
      if (const auto* loop = base.get<std::shared_ptr<Loop>>(); loop != nullptr && key.text() != nullptr) {
        return loop_attribute(*loop, key.text()->bytes);
      }
      // Characters of several bytes have to be counted up to the one that is asked for.
      if (base.text() != nullptr && !base.text()->one_byte_chars()) TANDEM_TRY(budget_.charge(scan_cost(base)));
      return subscript_of(base, key);
    }
    case Expr::Kind::kNot: {
      TANDEM_ASSIGN(const Value value, eval(*expr.args[0]));
      return Value{!truthy(value)};
    }
    case Expr::Kind::kNegative:
    case Expr::Kind::kPositive: {
      TANDEM_ASSIGN(const Value value, eval(*expr.args[0]));
      if (expr.kind == Expr::Kind::kNegative) return negate(value);
      if (value.undefined()) return undefined_error(value);
      if (!is_number(value)) return type_error(fmt::format("unary '+' is not supported for {}", type_name(value)));
      return value.is<bool>() ? make_int(*as_int(value)) : value;
    }
    case Expr::Kind::kAnd:
    case Expr::Kind::kOr: {
      TANDEM_ASSIGN(Value left, eval(*expr.args[0]));
      if (truthy(left) == (expr.kind == Expr::Kind::kOr)) return left;
      return eval(*expr.args[1]);
    }
    case Expr::Kind::kBinary: {
      TANDEM_ASSIGN(const Value left, eval(*expr.args[0]));
      TANDEM_ASSIGN(const Value right, eval(*expr.args[1]));
      Result result = arithmetic(expr.op, left, right, budget_);
      if (result.ok()) TANDEM_TRY(budget_.charge(cost(*result)));
      return result;
    }
  }
  return type_error("unknown expression");
}

Result Evaluator::eval_name(const Expr& expr) {
  Value value = lookup(expr.name);
  // The loop object leaves its loop here and could end up in itself.
  if (const auto* loop = value.get<std::shared_ptr<Loop>>()) loops_.push_back(*loop);
  return value;
}

Result Evaluator::eval_base(const Expr& expr) {
  return expr.kind == Expr::Kind::kName ? lookup(expr.name) : eval(expr);
}

Result Evaluator::eval_items(const Expr& expr) {
  std::vector<Value> items;
  items.reserve(expr.args.size());
  for (const ExprPtr& arg : expr.args) {
    TANDEM_ASSIGN(Value item, eval(*arg));
    items.push_back(std::move(item));
  }
  return make_sequence(std::move(items),
                       expr.kind == Expr::Kind::kTuple ? Sequence::Kind::kTuple : Sequence::Kind::kList);
}

Result Evaluator::eval_dict(const Expr& expr) {
  Dict dict;
  for (std::size_t i = 0; i + 1 < expr.args.size(); i += 2) {
    TANDEM_ASSIGN(Value key, eval(*expr.args[i]));
    if (!hashable(key)) return type_error(fmt::format("{} cannot be a key", type_name(key)));
    TANDEM_ASSIGN(Value value, eval(*expr.args[i + 1]));
    dict.set(std::move(key), std::move(value));
  }
  return make_dict(std::move(dict));
}

Result Evaluator::eval_attribute(const Expr& expr) {
  TANDEM_ASSIGN(const Value base, eval_base(*expr.args[0]));
  if (const auto* loop = base.get<std::shared_ptr<Loop>>()) return loop_attribute(*loop, expr.text);
  return attribute_of(base, expr.text);
}

Result Evaluator::eval_slice(const Expr& expr) {
  Value parts[4];
  for (std::size_t i = 0; i < 4; ++i) {
    if (expr.args[i] == nullptr) {
      parts[i] = {None{}};
    } else {
      TANDEM_ASSIGN(parts[i], eval(*expr.args[i]));
    }
  }
  TANDEM_TRY(budget_.charge(scan_cost(parts[0])));
  return slice_of(parts[0], parts[1], parts[2], parts[3]);
}

absl::StatusOr<CallArgs> Evaluator::eval_args(const Expr& expr) {
  CallArgs args;
  args.positional.reserve(expr.args.size());
  for (std::size_t i = 1; i < expr.args.size(); ++i) {
    TANDEM_ASSIGN(Value value, eval(*expr.args[i]));
    args.positional.push_back(std::move(value));
  }
  if (expr.star != nullptr) {
    TANDEM_ASSIGN(const Value more, eval(*expr.star));
    TANDEM_ASSIGN(const auto items, to_vector(more, budget_));
    args.positional.insert(args.positional.end(), items.begin(), items.end());
  }
  for (const auto& [name, value_expr] : expr.named) {
    TANDEM_ASSIGN(Value value, eval(*value_expr));
    args.named.emplace_back(name, std::move(value));
  }
  if (expr.star_star != nullptr) {
    TANDEM_ASSIGN(const Value more, eval(*expr.star_star));
    const Dict* dict = more.dict();
    if (dict == nullptr) return type_error(fmt::format("'**' wants a mapping, not {}", type_name(more)));
    TANDEM_TRY(budget_.charge(dict->entries().size()));
    for (const auto& [key, value] : dict->entries()) {
      if (key.text() == nullptr) return type_error("names of arguments must be strings");
      args.named.emplace_back(key.text()->bytes, value);
    }
  }
  return args;
}

Result Evaluator::eval_call(const Expr& expr) {
  TANDEM_ASSIGN(const Value callee, eval_base(*expr.args[0]));
  TANDEM_ASSIGN(CallArgs args, eval_args(expr));
  return call(callee, std::move(args));
}

Result Evaluator::call(const Value& callee, CallArgs args) {
  if (callee.undefined()) return undefined_error(callee);
  if (const auto* loop = callee.object<Loop>()) return recurse(*loop, args);
  const auto* callable = callee.object<const Callable>();
  if (callable == nullptr) return type_error(fmt::format("{} cannot be called", type_name(callee)));
  if (callable->macro != nullptr) return call_macro(*callable, std::move(args));
  TANDEM_TRY(budget_.charge(scan_cost(callable->self)));
  Result result = callable->function(*this, callable->self, args);
  if (result.ok()) TANDEM_TRY(budget_.charge(cost(*result)));
  return result;
}

Result Evaluator::call_macro(const Callable& callable, CallArgs args) {
  const Macro& macro = *callable.macro;
  const Depth depth(*this);
  TANDEM_TRY(depth.check());
  auto scope = std::make_shared<Scope>(callable.scope);
  std::vector<const Macro::Parameter*> missing;
  bool names_caller = false;
  bool names_kwargs = false;
  bool names_varargs = false;
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    const Macro::Parameter& parameter = macro.parameters[i];
    names_caller = names_caller || parameter.id == kCallerName;
    names_kwargs = names_kwargs || parameter.id == kKwargsName;
    names_varargs = names_varargs || parameter.id == kVarargsName;
    const auto named = std::find_if(args.named.begin(), args.named.end(),
                                    [&](const auto& arg) { return arg.first == parameter.name; });
    if (i < args.positional.size()) {
      scope->set(parameter.id, args.positional[i]);
    } else if (named != args.named.end()) {
      scope->set(parameter.id, std::move(named->second));
      args.named.erase(named);
    } else {
      missing.push_back(&parameter);
    }
  }
  if (macro.uses_caller && !names_caller) {
    const auto caller =
        std::find_if(args.named.begin(), args.named.end(), [](const auto& arg) { return arg.first == "caller"; });
    scope->set(kCallerName, caller != args.named.end() ? caller->second : make_undefined("no caller is defined"));
    if (caller != args.named.end()) args.named.erase(caller);
  }
  if (macro.uses_kwargs && !names_kwargs) {
    Dict rest;
    for (auto& [name, value] : args.named) rest.set(make_text(name), std::move(value));
    TANDEM_ASSIGN(Value kwargs, make_dict(std::move(rest)));
    scope->set(kKwargsName, std::move(kwargs));
  } else if (!args.named.empty()) {
    return type_error(fmt::format("the macro '{}' takes no argument '{}'", macro.name, args.named.front().first));
  }
  const std::size_t taken = std::min(args.positional.size(), macro.parameters.size());
  if (macro.uses_varargs && !names_varargs) {
    TANDEM_ASSIGN(Value rest,
                  make_sequence({args.positional.begin() + static_cast<std::ptrdiff_t>(taken), args.positional.end()},
                                Sequence::Kind::kTuple));
    scope->set(kVarargsName, std::move(rest));
  } else if (args.positional.size() > taken) {
    return type_error(fmt::format("the macro '{}' takes no more than {} arguments", macro.name, taken));
  }
  TextBuilder out;
  const Swapped swapped(*this, scope, &out);
  for (const Macro::Parameter* parameter : missing) {
    Value value = make_undefined(fmt::format("parameter '{}' was not provided", parameter->name));
    if (parameter->fallback != nullptr) {
      TANDEM_ASSIGN(value, eval(*parameter->fallback));
    }
    scope->set(parameter->id, std::move(value));
  }
  TANDEM_TRY(execute(macro.body).status());
  TANDEM_ASSIGN(auto text, out.finish());
  return Value{std::move(text)};
}

Result Evaluator::eval_filter(const Expr& expr) {
  if (expr.function == nullptr) return type_error(fmt::format("the filter '{}' is not supported", expr.text));
  Value input;
  if (expr.args[0] != nullptr) {
    TANDEM_ASSIGN(input, eval(*expr.args[0]));
  } else {
    input = block_text_;
  }
  TANDEM_ASSIGN(const CallArgs args, eval_args(expr));
  TANDEM_TRY(budget_.charge(scan_cost(input)));
  Result result = expr.function(*this, input, args);
  if (result.ok()) TANDEM_TRY(budget_.charge(cost(*result)));
  return result;
}

Result Evaluator::eval_test(const Expr& expr) {
  if (expr.function == nullptr) return type_error(fmt::format("the test '{}' is not supported", expr.text));
  TANDEM_ASSIGN(const Value input, eval(*expr.args[0]));
  TANDEM_ASSIGN(const CallArgs args, eval_args(expr));
  return expr.function(*this, input, args);
}

Result Evaluator::eval_concat(const Expr& expr) {
  TextBuilder out;
  for (const ExprPtr& arg : expr.args) {
    TANDEM_ASSIGN(const Value value, eval(*arg));
    TANDEM_ASSIGN(const TextPtr text, to_text(value));
    TANDEM_TRY(budget_.charge(text->bytes.size() / 32));
    out.append(*text);
  }
  TANDEM_ASSIGN(auto text, out.finish());
  return Value{std::move(text)};
}

absl::StatusOr<bool> Evaluator::compare(Comparison comparison, const Value& a, const Value& b) {
  switch (comparison) {
    case Comparison::kEqual: return equals(a, b, budget_);
    case Comparison::kNotEqual: {
      TANDEM_ASSIGN(const bool same, equals(a, b, budget_));
      return !same;
    }
    case Comparison::kLess: return less(a, b, budget_);
    case Comparison::kGreater: return less(b, a, budget_);
    case Comparison::kLessEqual:
    case Comparison::kGreaterEqual: {
      const bool swapped = comparison == Comparison::kGreaterEqual;
      TANDEM_ASSIGN(const bool before, swapped ? less(b, a, budget_) : less(a, b, budget_));
      if (before) return true;
      return equals(a, b, budget_);
    }
    case Comparison::kIn: return contains(b, a, budget_);
    case Comparison::kNotIn: {
      TANDEM_ASSIGN(const bool inside, contains(b, a, budget_));
      return !inside;
    }
  }
  return false;
}

Result Evaluator::eval_compare(const Expr& expr) {
  TANDEM_ASSIGN(Value left, eval(*expr.args[0]));
  for (std::size_t i = 0; i < expr.comparisons.size(); ++i) {
    TANDEM_ASSIGN(Value right, eval(*expr.args[i + 1]));
    TANDEM_ASSIGN(const bool holds, compare(expr.comparisons[i], left, right));
    if (!holds) return Value{false};
    left = std::move(right);
  }
  return Value{true};
}

Result Evaluator::eval_conditional(const Expr& expr) {
  TANDEM_ASSIGN(const Value condition, eval(*expr.args[1]));
  if (truthy(condition)) return eval(*expr.args[0]);
  if (expr.args[2] != nullptr) return eval(*expr.args[2]);
  return make_undefined(fmt::format("the inline if of line {} is false and has no else", expr.line));
}

}  // namespace tandem::jinja
