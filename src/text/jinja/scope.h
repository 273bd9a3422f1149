// What a running template's names stand for: scopes, and the loop object of a `for`. Owned by the evaluator of one
// render and by the macros and loops that refer to them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "text/jinja/python.h"
#include "text/jinja/tree.h"

namespace tandem::jinja {

// Names set in a body; those around it are found through `parent`.
class Scope final {
 public:
  explicit Scope(std::shared_ptr<Scope> parent) : parent_(std::move(parent)) {}
  const Value* find(NameId id) const;  // here or further out
  void set(NameId id, Value value);
  void clear() { values_.clear(); }

 private:
  std::shared_ptr<Scope> parent_;  // shared with macros defined in it
  std::vector<std::pair<NameId, Value>> values_;
};
using ScopePtr = std::shared_ptr<Scope>;

// A running `for`, and what its body sees as `loop`.
struct Loop {
  Loop(const Stmt& s, Cursor c, ScopePtr o, std::int64_t d)
      : stmt(&s), source(std::move(c)), outer(std::move(o)), depth0(d) {}
  const Stmt* stmt;
  Cursor source;
  ScopePtr outer;  // shared with the statement that runs the loop
  std::int64_t depth0;
  std::int64_t index0 = -1;
  std::optional<Value> ahead;  // fetched early because the body asked for it
  std::optional<std::int64_t> num_items;
  Value current;
  Value previous;
  std::optional<std::vector<Value>> changed;
};

}  // namespace tandem::jinja
