// JSON text to values (nlohmann_json reads it) and json.dumps.
#include <cmath>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "fmt/core.h"

#include "text/jinja/python.h"

namespace tandem::jinja {
namespace {

using Json = nlohmann::json;

// Builds a value from the parser's events. All text of it is the user's.
class ValueReader final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return add({None{}}); }
  bool boolean(bool value) override { return add({value}); }
  bool number_integer(std::int64_t value) override { return add({value}); }
  bool number_unsigned(std::uint64_t value) override {
    if (value > static_cast<std::uint64_t>(INT64_MAX)) return add_big(std::to_string(value));
    return add({static_cast<std::int64_t>(value)});
  }
  bool number_float(double value, const std::string& digits) override {
    const bool integer = digits.find_first_of(".eE") == std::string::npos;
    return integer ? add_big(digits) : add({value});
  }
  bool string(std::string& text) override { return add(make_text(text, Origin::kUser)); }
  bool binary(Json::binary_t&) override { return false; }
  bool key(std::string& text) override {
    open_.back().key = make_text(text, Origin::kUser);
    return true;
  }
  bool start_object(std::size_t) override { return open(true); }
  bool start_array(std::size_t) override { return open(false); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    error_ = fmt::format("not valid JSON at byte {}", position);
    return false;
  }

  Result finish(bool complete) {
    if (!complete) return type_error(error_);
    return result_;
  }

 private:
  struct Open {
    bool object = false;
    Value key;
    Dict dict;
    std::vector<Value> items;
  };

  bool open(bool object) {
    if (open_.size() >= static_cast<std::size_t>(kMaxNesting)) {
      error_ = fmt::format("JSON is nested deeper than {}", kMaxNesting);
      return false;
    }
    open_.push_back({.object = object, .key = {}, .dict = {}, .items = {}});
    return true;
  }

  bool close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    Result value = done.object ? make_dict(std::move(done.dict)) : make_sequence(std::move(done.items));
    if (!value.ok()) {
      error_ = message(value.status());
      return false;
    }
    return add(*std::move(value));
  }

  bool add_big(std::string digits) { return add({BigInt{std::make_shared<const std::string>(std::move(digits))}}); }

  bool add(Value value) {
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (open_.back().object) {
      open_.back().dict.set(std::move(open_.back().key), std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  std::vector<Open> open_;
  Value result_;
  std::string error_ = "not valid JSON";
};

class Writer final {
 public:
  Writer(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  absl::Status write(const Value& value, std::size_t depth) {
    TANDEM_TRY(budget_.charge(1));
    if (value.is<None>()) return append("null");
    if (const auto* boolean = value.get<bool>()) return append(*boolean ? "true" : "false");
    if (const auto* real = value.get<double>()) return append(number(*real));
    if (value.is<std::int64_t>() || value.is<BigInt>()) {
      append_repr(out_, value);
      return absl::OkStatus();
    }
    if (const auto* text = value.text()) return write_text(*text);
    if (const auto* dict = value.dict()) return write_dict(*dict, depth);
    const auto* sequence = value.sequence();
    if (sequence != nullptr && (sequence->kind == Sequence::Kind::kList || sequence->kind == Sequence::Kind::kTuple)) {
      return write_list(*sequence, depth);
    }
    return type_error(fmt::format("an object of type {} cannot be written as JSON", type_name(value)));
  }

  Result finish() { return make_text(std::move(out_)); }

 private:
  absl::Status append(std::string_view text) {
    out_.append(text);
    return absl::OkStatus();
  }

  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_repr(value);
  }

  void new_line(std::size_t depth) {
    if (!style_.indent) return;
    out_.append("\n");
    for (std::size_t i = 0; i < depth && !out_.full(); ++i) out_.append(*style_.indent);
  }

  absl::Status write_text(const Text& text) {
    TANDEM_TRY(budget_.charge(text.bytes.size() / 32));
    out_.append("\"");
    std::size_t plain = 0;
    for (std::size_t at = 0; at < text.bytes.size() && !out_.full();) {
      const auto byte = static_cast<unsigned char>(text.bytes[at]);
      if (byte >= 0x20 && byte != '"' && byte != '\\' && (byte < 0x80 || !style_.ensure_ascii)) {
        ++at;
        continue;
      }
      const CodePoint c = decode(text.bytes, at);
      out_.append(text, plain, at);
      out_.append(escaped(c.value), origin_at(text, at));
      at += c.bytes;
      plain = at;
    }
    out_.append(text, plain, text.bytes.size());
    return append("\"");
  }

  static std::string escaped(char32_t c) {
    switch (c) {
      case '"': return "\\\"";
      case '\\': return "\\\\";
      case '\n': return "\\n";
      case '\r': return "\\r";
      case '\t': return "\\t";
      case '\f': return "\\f";
      case '\b': return "\\b";
      default: break;
    }
    const auto code = static_cast<std::uint32_t>(c);
    if (code < 0x10000) return fmt::format("\\u{:04x}", code);
    return fmt::format("\\u{:04x}\\u{:04x}", 0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF));
  }

  absl::Status write_key(const Value& key) {
    if (const auto* text = key.text()) return write_text(*text);
    if (key.is<None>() || is_number(key)) {
      out_.append("\"");
      TANDEM_TRY(write(key, 0));
      return append("\"");
    }
    return type_error(fmt::format("keys of JSON objects must be strings or scalars, not {}", type_name(key)));
  }

  absl::Status write_dict(const Dict& dict, std::size_t depth) {
    if (dict.entries().empty()) return append("{}");
    std::vector<const Dict::Entry*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys) TANDEM_TRY(sort(entries));
    out_.append("{");
    for (std::size_t i = 0; i < entries.size() && !out_.full(); ++i) {
      if (i > 0) out_.append(*style_.item_separator);
      new_line(depth + 1);
      TANDEM_TRY(write_key(entries[i]->first));
      out_.append(*style_.key_separator);
      TANDEM_TRY(write(entries[i]->second, depth + 1));
    }
    new_line(depth);
    return append("}");
  }

  absl::Status write_list(const Sequence& sequence, std::size_t depth) {
    if (sequence.items.empty()) return append("[]");
    out_.append("[");
    for (std::size_t i = 0; i < sequence.items.size() && !out_.full(); ++i) {
      if (i > 0) out_.append(*style_.item_separator);
      new_line(depth + 1);
      TANDEM_TRY(write(sequence.items[i], depth + 1));
    }
    new_line(depth);
    return append("]");
  }

  absl::Status sort(std::vector<const Dict::Entry*>& entries) {
    absl::Status failure;
    std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
      if (!failure.ok()) return false;
      const auto before = less(a->first, b->first, budget_);
      if (!before.ok()) failure = before.status();
      return before.ok() && *before;
    });
    return failure;
  }

  const JsonStyle& style_;
  Budget& budget_;
  TextBuilder out_;
};

}  // namespace

Result parse_json(std::string_view json) {
  ValueReader reader;
  bool complete = false;
  try {
    complete = Json::sax_parse(json, &reader);
  } catch (const std::exception& error) {
    return type_error(error.what());
  }
  return reader.finish(complete);
}

Result to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  Writer writer(style, budget);
  TANDEM_TRY(writer.write(value, 0));
  return writer.finish();
}

}  // namespace tandem::jinja
