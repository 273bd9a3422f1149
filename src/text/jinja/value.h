// Values of the Jinja engine. They are shared and immutable, except that namespaces change and generators are
// consumed; a value belongs to one render, a template's constants to all. What Python does with them (truth,
// equality, order, printing) is in jinja/python.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "text/jinja/text.h"

namespace tandem::jinja {

inline constexpr int kMaxNesting = 128;  // lists in lists; bounds the recursion of printing and of destruction

struct Sequence;
class Dict;
struct Namespace;
struct Callable;  // jinja/functions.h
struct Loop;      // jinja/eval.h

struct Undefined {
  std::shared_ptr<const std::string> hint;  // what its use as a value says
};
struct None {};
// An integer of JSON data beyond 64 bits: it prints, but does not compute.
struct BigInt {
  std::shared_ptr<const std::string> digits;
};

struct Value {
  std::variant<Undefined, None, bool, std::int64_t, BigInt, double, TextPtr, std::shared_ptr<Sequence>,
               std::shared_ptr<const Dict>, std::shared_ptr<Namespace>, std::shared_ptr<const Callable>,
               std::shared_ptr<Loop>>
      any;

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(any);
  }
  template <typename T>
  const T* get() const {
    return std::get_if<T>(&any);
  }
  // The object behind the value when it is a T, else null.
  template <typename T>
  T* object() const {
    const auto* pointer = std::get_if<std::shared_ptr<T>>(&any);
    return pointer != nullptr ? pointer->get() : nullptr;
  }
  const Text* text() const { return object<const Text>(); }
  Sequence* sequence() const { return object<Sequence>(); }
  const Dict* dict() const { return object<const Dict>(); }
  bool undefined() const { return is<Undefined>(); }
};
using Result = absl::StatusOr<Value>;

struct Sequence {
  enum class Kind : std::uint8_t { kList, kTuple, kRange, kGenerator, kItems, kKeys, kValues };
  Kind kind = Kind::kList;
  std::vector<Value> items;
  int nesting = 1;
  std::size_t consumed = 0;  // of a generator
  std::string label;         // how a range prints

  bool sized() const { return kind != Kind::kGenerator; }
  bool indexable() const { return kind == Kind::kList || kind == Kind::kTuple || kind == Kind::kRange; }
};

// In insertion order. Keys are hashable values; 1, 1.0 and true are one key.
class Dict final {
 public:
  using Entry = std::pair<Value, Value>;
  const std::vector<Entry>& entries() const { return entries_; }
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);
  int nesting() const { return nesting_; }

 private:
  std::size_t position(const Value& key) const;  // entries_.size() when absent
  std::size_t position(std::string_view key) const;
  std::vector<Entry> entries_;
  std::map<std::string_view, std::size_t> by_text_;  // views into the keys; used once there are many
  std::vector<std::size_t> others_;                  // entries whose key is no text
  int nesting_ = 1;
};

struct Namespace {
  Dict values;
};

Value make_undefined(std::string hint);
Value make_text(std::string_view bytes, Origin origin = Origin::kTemplate);
Value make_int(std::int64_t value);
Value make_sequence_unchecked(std::vector<Value> items, Sequence::Kind kind);  // of scalars
// Fails past kMaxElements or kMaxNesting.
Result make_sequence(std::vector<Value> items, Sequence::Kind kind = Sequence::Kind::kList);
Result make_dict(Dict dict);
Result make_text(TextBuilder builder);

}  // namespace tandem::jinja
