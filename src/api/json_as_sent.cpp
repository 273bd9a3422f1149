#include "api/json_as_sent.h"

#include <cstdint>

#include "api/json_text.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using Json = nlohmann::json;

// Writes the values of one member from the parser's events.
class Copier final : public nlohmann::json_sax<Json> {
 public:
  explicit Copier(std::string_view name) : name_(name) {}

  std::vector<std::string> take() { return std::move(texts_); }

  bool null() override { return scalar("null"); }
  bool boolean(bool value) override { return scalar(value ? "true" : "false"); }
  bool number_integer(std::int64_t value) override { return scalar(fmt::to_string(value)); }
  bool number_unsigned(std::uint64_t value) override { return scalar(fmt::to_string(value)); }
  bool number_float(double, const std::string& digits) override { return scalar(digits); }
  bool string(std::string& text) override {
    if (!active_) return true;
    std::string quoted;
    append_json_string(quoted, text);
    return scalar(quoted);
  }
  bool binary(Json::binary_t&) override { return false; }
  bool key(std::string& text) override {
    if (depth_ == 1) {
      active_ = text == name_;
      in_array_ = false;
      if (active_) texts_.clear();  // of a member that is sent twice the last one counts
    } else if (active_) {
      separate();
      append_json_string(texts_.back(), text);
      texts_.back().push_back(':');
    }
    return true;
  }
  bool start_object(std::size_t) override { return open('{'); }
  bool start_array(std::size_t) override {
    if (active_ && depth_ == 1) {
      in_array_ = true;
      ++depth_;
      return true;
    }
    return open('[');
  }
  bool end_object() override { return close('}'); }
  bool end_array() override { return close(']'); }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override { return false; }

 private:
  int first_depth() const { return in_array_ ? 2 : 1; }

  // Before a value or a key: a new text, or a comma unless it is the first of its object or array.
  void separate() {
    if (depth_ == first_depth()) {
      texts_.emplace_back();
    } else if (const char last = texts_.back().back(); last != '{' && last != '[' && last != ':') {
      texts_.back().push_back(',');
    }
  }
  bool scalar(std::string_view text) {
    if (!active_) return true;
    separate();
    texts_.back().append(text);
    return true;
  }
  bool open(char bracket) {
    if (active_) {
      separate();
      texts_.back().push_back(bracket);
    }
    ++depth_;
    return true;
  }
  bool close(char bracket) {
    --depth_;
    if (active_ && depth_ >= first_depth()) texts_.back().push_back(bracket);
    return true;
  }

  const std::string_view name_;
  int depth_ = 0;
  bool active_ = false;    // within the member
  bool in_array_ = false;  // and its value is an array
  std::vector<std::string> texts_;
};

}  // namespace

std::vector<std::string> json_as_sent(std::string_view body, std::string_view name) {
  Copier copier(name);
  Json::sax_parse(body, &copier);
  return copier.take();
}

}  // namespace tandem
