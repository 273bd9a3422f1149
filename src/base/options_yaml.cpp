// The configuration file. yaml-cpp's tree would merge repeated keys and read `yes` as true; its events show every
// key with its line and the text as it was written.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <sstream>

#include "base/handles.h"
#include "base/options.h"
#include "fmt/core.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/exceptions.h"
#include "yaml-cpp/mark.h"
#include "yaml-cpp/parser.h"

namespace tandem {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;

// Put after the text as a comment. yaml-cpp 0.7 ends a quote that is never closed at the end of the file without
// a word; then this is found in the value.
constexpr char kEndOfFile[] = "\n# end of file 5b1f8c36\n";
constexpr char kEndOfFileWord[] = "5b1f8c36";

absl::StatusOr<std::string> read_file(const std::string& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return errno_status(fmt::format("open the configuration file {}", path));
  std::string text(kMaxFileBytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(fd.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status(fmt::format("read the configuration file {}", path));
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        fmt::format("{} is larger than {} bytes; is it a configuration file?", path, kMaxFileBytes));
  }
  text.resize(size);
  if (text.find('\0') != std::string::npos) {  // yaml-cpp would end the file there
    return absl::InvalidArgumentError(fmt::format("{} holds a zero byte; write it as UTF-8 text", path));
  }
  return text;
}

// Index of the last line with text on it.
int last_line(std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

// Accepts exactly: one mapping whose keys are options and whose values are scalars or, for a list option,
// sequences of scalars. Keeps the first fault and ignores all that follows it.
class FileReader final : public YAML::EventHandler {
 public:
  FileReader(const std::string& path, const OptionTable& table) : path_(path), table_(table) {}

  const absl::Status& status() const { return status_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (num_documents_++ > 0) fail(mark, "a second document starts here; keep one");
  }
  void OnDocumentEnd() override {}

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { fail(mark, "aliases are not supported"); }

  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    if (place_ == Place::kDocument) return;  // a file of comments
    if (place_ == Place::kKey) return fail(mark, "a key is empty");
    // An absent value has the mark of the token after it.
    fail(place_ == Place::kValue ? key_mark_ : mark, R"(has no value; write one ("" for an empty text))");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (!plain_node(mark, tag, anchor)) return;
    if (value.find(kEndOfFileWord) != std::string::npos) return fail(mark, "the quote opened here is never closed");
    switch (place_) {
      case Place::kDocument: return fail(mark, "the file must be a mapping of options, such as `port: 8080`");
      case Place::kKey: return read_key(mark, value);
      case Place::kItem: items_.push_back(value); return;
      case Place::kValue: break;
    }
    if (option_->kind == OptionKind::kList) return fail(mark, "takes a list; write [first, second]");
    items_.assign(1, value);
    assign(mark);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    if (!plain_node(mark, tag, anchor)) return;
    if (place_ != Place::kValue) return fail(mark, "a list is not expected here");
    if (option_->kind != OptionKind::kList) return fail(mark, "takes one value, not a list");
    place_ = Place::kItem;
    items_.clear();
    list_mark_ = mark;
  }
  void OnSequenceEnd() override {
    if (status_.ok()) assign(list_mark_);
  }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    if (!plain_node(mark, tag, anchor)) return;
    if (place_ != Place::kDocument) return fail(mark, "options do not nest; write it at the top level");
    place_ = Place::kKey;
  }
  void OnMapEnd() override {}

  void fail(const YAML::Mark& mark, std::string_view reason) {
    if (!status_.ok()) return;
    const std::string line = mark.is_null() ? "" : fmt::format(":{}", mark.line + 1);
    const std::string key = option_ == nullptr ? "" : option_->name + ": ";
    status_ = absl::InvalidArgumentError(fmt::format("{}{}: {}{}", path_, line, key, reason));
  }

 private:
  enum class Place : std::uint8_t { kDocument, kKey, kValue, kItem };

  // False once there is a fault; also refuses tags and anchors. yaml-cpp marks plain scalars "?" and quoted "!".
  bool plain_node(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (!tag.empty() && tag != "?" && tag != "!") fail(mark, fmt::format("the tag {} is not supported", tag));
    if (anchor != YAML::NullAnchor) fail(mark, "anchors are not supported");
    return status_.ok();
  }

  void read_key(const YAML::Mark& mark, const std::string& key) {
    const Option* option = table_.find(key);
    if (option == nullptr) {
      return fail(mark, fmt::format("unknown option \"{:.64}\"{}", key, table_.did_you_mean(key)));
    }
    if (!seen_.insert(key).second) return fail(mark, fmt::format("{} is set a second time; remove one", key));
    option_ = option;
    key_mark_ = mark;
    place_ = Place::kValue;
  }

  void assign(const YAML::Mark& mark) {
    if (const absl::Status assigned = option_->assign(items_); !assigned.ok()) return fail(mark, message(assigned));
    option_ = nullptr;
    place_ = Place::kKey;
  }

  const std::string& path_;
  const OptionTable& table_;
  absl::Status status_;
  Place place_ = Place::kDocument;
  int num_documents_ = 0;
  const Option* option_ = nullptr;  // the key that waits for its value
  YAML::Mark key_mark_;
  std::vector<std::string> items_;
  YAML::Mark list_mark_;
  std::set<std::string> seen_;
};

}  // namespace

absl::Status apply_yaml_file(const std::string& path, const OptionTable& table) {
  TANDEM_ASSIGN(const std::string text, read_file(path));
  FileReader reader(path, table);
  try {
    std::istringstream stream(text + kEndOfFile);
    YAML::Parser parser(stream);
    while (reader.status().ok() && parser.HandleNextDocument(reader)) {
    }
  } catch (const YAML::Exception& error) {
    YAML::Mark mark = error.mark;  // beyond the text when something is left open
    mark.line = std::min(mark.line, last_line(text));
    reader.fail(mark, fmt::format("not valid YAML: {}", error.msg));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(fmt::format("{} cannot be read as YAML: {}", path, error.what()));
  }
  return reader.status();
}

}  // namespace tandem
