// The syntax tree of a template. A Template is immutable and shared by all renders.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/functions.h"
#include "text/jinja/python.h"

namespace tandem::jinja {

using NameId = std::uint32_t;  // position in Template::names
enum : NameId { kLoopName, kCallerName, kVarargsName, kKwargsName };

enum class Comparison : std::uint8_t { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;  // null where the syntax leaves a part out

struct Expr {
  enum class Kind : std::uint8_t {
    kConst,        // constant
    kName,         // name
    kTuple,        // args
    kList,         // args
    kDict,         // args: key, value, key, value ...
    kAttribute,    // args[0].text; as a target: namespace attribute
    kSubscript,    // args[0][args[1]]
    kSlice,        // args[0][args[1]:args[2]:args[3]]
    kCall,         // args[0](args[1] ..., named, *star, **star_star)
    kFilter,       // args[0]|text(args[1] ...); args[0] null: the block's text
    kTest,         // args[0] is text(args[1] ...)
    kNot,          // args[0]; so too:
    kNegative,
    kPositive,
    kAnd,          // args[0], args[1]; so too:
    kOr,
    kBinary,       // args[0] op args[1]
    kConcat,       // args
    kCompare,      // args[0] comparisons[0] args[1] comparisons[1] args[2] ...
    kConditional,  // args[0] if args[1] else args[2]
  };
  Kind kind = Kind::kConst;
  int line = 0;
  int depth = 1;  // of the tree below
  std::vector<ExprPtr> args;
  Value constant;
  NameId name = 0;
  std::string text;
  Function function = nullptr;  // of kFilter and kTest; null: unknown, which fails when it runs
  Operator op = Operator::kAdd;
  std::vector<Comparison> comparisons;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;
  ExprPtr star_star;
};

struct Stmt;
struct Branch;
// A macro, or the body of a call block.
struct Macro {
  struct Parameter {
    NameId id = 0;
    std::string name;
    ExprPtr fallback;
  };
  std::string name;
  std::vector<Parameter> parameters;
  std::vector<Stmt> body;
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

struct Stmt {
  enum class Kind : std::uint8_t {
    kData,         // text
    kPrint,        // value
    kIf,           // branches, orelse
    kFor,          // target in value, filter, body, orelse, recursive
    kSet,          // target = value
    kSetBlock,     // target = body, through value (a filter chain) if not null
    kFilterBlock,  // body through value
    kMacro,        // name, macro
    kCallBlock,    // value (a call) with macro as its caller
    kScope,        // body with names of its own; with: targets and values in assignments
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kData;
  int line = 0;
  TextPtr text;
  ExprPtr target;
  ExprPtr value;
  ExprPtr filter;
  std::vector<Stmt> body;
  std::vector<Stmt> orelse;
  std::vector<Branch> branches;
  std::vector<std::pair<ExprPtr, ExprPtr>> assignments;
  std::unique_ptr<Macro> macro;
  NameId name = 0;
  bool recursive = false;
};

struct Branch {
  ExprPtr condition;
  std::vector<Stmt> body;
};

struct Template {
  std::vector<Stmt> body;
  std::vector<std::string> names;
  std::unordered_map<std::string, NameId> ids;
};

}  // namespace tandem::jinja
