#include "model/gguf.h"

#include <algorithm>
#include <utility>

#include "fmt/core.h"
#include "model/gguf_values.h"

namespace tandem {
namespace {

std::optional<std::int64_t> load_integer(GgufType type, const std::byte* at) {
  switch (type) {
    case GgufType::kU8: return load<std::uint8_t>(at);
    case GgufType::kI8: return load<std::int8_t>(at);
    case GgufType::kU16: return load<std::uint16_t>(at);
    case GgufType::kI16: return load<std::int16_t>(at);
    case GgufType::kU32: return load<std::uint32_t>(at);
    case GgufType::kI32: return load<std::int32_t>(at);
    case GgufType::kI64: return load<std::int64_t>(at);
    case GgufType::kU64: {
      const auto value = load<std::uint64_t>(at);
      // No value here means more than 2^63 - 1 of anything; it is out of every range a caller gives.
      return value > INT64_MAX ? INT64_MAX : static_cast<std::int64_t>(value);
    }
    default: return std::nullopt;
  }
}

bool is_integer(GgufType type) {
  return type != GgufType::kF32 && type != GgufType::kF64 && type != GgufType::kBool && type != GgufType::kString;
}

std::uint64_t integer_stride(GgufType type) { return *value_bytes(static_cast<std::uint32_t>(type)); }

}  // namespace

const GgufEntry* GgufFile::find(std::string_view key) const {
  const auto found = std::ranges::lower_bound(entries_, key, {}, &GgufEntry::key);
  return found != entries_.end() && found->key == key ? &*found : nullptr;
}

absl::Status GgufFile::wrong_type(const GgufEntry& entry, std::string_view wanted) const {
  return absl::InvalidArgumentError(fmt::format("{}: metadata \"{}\" is {} {}; {} is expected (at offset {})", path_,
                                                entry.key, entry.is_array ? "an array of" : "a", type_name(entry.type),
                                                wanted, entry.offset));
}

absl::StatusOr<std::optional<std::int64_t>> GgufFile::integer(std::string_view key, std::int64_t least,
                                                              std::int64_t most) const {
  const GgufEntry* entry = find(key);
  if (entry == nullptr) return std::optional<std::int64_t>();
  const std::optional<std::int64_t> value =
      entry->is_array ? std::nullopt : load_integer(entry->type, bytes_.data() + entry->offset);
  if (!value) return wrong_type(*entry, "an integer");
  if (*value < least || *value > most) {
    return absl::InvalidArgumentError(fmt::format("{}: metadata \"{}\" is {}; it must lie in [{}, {}] (at offset {})",
                                                  path_, key, *value, least, most, entry->offset));
  }
  return value;
}

absl::StatusOr<std::optional<double>> GgufFile::number(std::string_view key) const {
  const GgufEntry* entry = find(key);
  if (entry == nullptr) return std::optional<double>();
  const std::byte* at = bytes_.data() + entry->offset;
  if (entry->is_array || (entry->type != GgufType::kF32 && entry->type != GgufType::kF64)) {
    return wrong_type(*entry, "a floating-point number");
  }
  return std::optional<double>(entry->type == GgufType::kF32 ? double{load<float>(at)} : load<double>(at));
}

absl::StatusOr<std::optional<bool>> GgufFile::boolean(std::string_view key) const {
  const GgufEntry* entry = find(key);
  if (entry == nullptr) return std::optional<bool>();
  if (entry->is_array || entry->type != GgufType::kBool) return wrong_type(*entry, "a boolean");
  return std::optional<bool>(load<std::uint8_t>(bytes_.data() + entry->offset) != 0);
}

absl::StatusOr<std::optional<std::string_view>> GgufFile::text(std::string_view key) const {
  const GgufEntry* entry = find(key);
  if (entry == nullptr) return std::optional<std::string_view>();
  if (entry->is_array || entry->type != GgufType::kString) return wrong_type(*entry, "a string");
  const auto length = load<std::uint64_t>(bytes_.data() + entry->offset);
  return std::optional(view_text(bytes_, entry->offset + 8, length));
}

absl::StatusOr<const GgufEntry*> GgufFile::find_array(std::string_view key, std::uint64_t most,
                                                      std::string_view wanted) const {
  const GgufEntry* entry = find(key);
  if (entry == nullptr) return entry;
  if (!entry->is_array) return wrong_type(*entry, wanted);
  if (entry->count > most) {
    return absl::InvalidArgumentError(
        fmt::format("{}: metadata \"{}\" has {} elements; at most {} are read (at offset {})", path_, key, entry->count,
                    most, entry->offset));
  }
  return entry;
}

absl::StatusOr<std::optional<std::vector<std::string_view>>> GgufFile::texts(std::string_view key,
                                                                             std::uint64_t most) const {
  TANDEM_ASSIGN(const GgufEntry* entry, find_array(key, most, "an array of strings"));
  if (entry == nullptr) return std::optional<std::vector<std::string_view>>();
  if (entry->type != GgufType::kString) return wrong_type(*entry, "an array of strings");
  std::vector<std::string_view> values;
  values.reserve(entry->count);
  std::uint64_t offset = entry->offset;
  for (std::uint64_t i = 0; i < entry->count; ++i) {
    const auto length = load<std::uint64_t>(bytes_.data() + offset);
    values.push_back(view_text(bytes_, offset + 8, length));
    offset += 8 + length;
  }
  return std::optional(std::move(values));
}

absl::StatusOr<std::optional<std::vector<std::int64_t>>> GgufFile::integers(std::string_view key,
                                                                            std::uint64_t most) const {
  TANDEM_ASSIGN(const GgufEntry* entry, find_array(key, most, "an array of integers"));
  if (entry == nullptr) return std::optional<std::vector<std::int64_t>>();
  if (!is_integer(entry->type)) return wrong_type(*entry, "an array of integers");
  std::vector<std::int64_t> values;
  values.reserve(entry->count);
  const std::uint64_t stride = integer_stride(entry->type);
  for (std::uint64_t i = 0; i < entry->count; ++i) {
    values.push_back(*load_integer(entry->type, bytes_.data() + entry->offset + i * stride));
  }
  return std::optional(std::move(values));
}

}  // namespace tandem
