// A GGUF file, version 2 or 3, little endian: its metadata and its table of tensors, all checked against the
// file's own length while it is opened. Knows the container, not what a model makes of it. Immutable.
// Format: the GGUF specification of the ggml project.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/handles.h"
#include "tandem/types.h"

namespace tandem {

enum class GgufType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// One metadata entry; a scalar is an array of one.
struct GgufEntry {
  std::string_view key;
  GgufType type = GgufType::kU8;     // of the value, or of the array's elements
  bool is_array = false;
  std::uint64_t count = 1;
  std::uint64_t offset = 0;          // of the first value, from the start of the file
};

// One tensor; cols is the dimension that varies fastest. `dims` more than two are an error of the reader's.
struct GgufTensor {
  std::string_view name;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::uint64_t info_offset = 0;  // of its entry in the table, for messages
  std::span<const std::byte> data;
};

class GgufFile final {
 public:
  // Every error names the file, the entry and the offset at fault.
  static absl::StatusOr<GgufFile> open(const std::string& path);

  // The value of a key; nothing when the key is absent; an error when it has another type or lies outside
  // [least, most]. Integers of every width count as integers, floats of both as numbers.
  absl::StatusOr<std::optional<std::int64_t>> integer(std::string_view key, std::int64_t least,
                                                      std::int64_t most) const;
  absl::StatusOr<std::optional<double>> number(std::string_view key) const;
  absl::StatusOr<std::optional<bool>> boolean(std::string_view key) const;
  absl::StatusOr<std::optional<std::string_view>> text(std::string_view key) const;
  // An array of at most `most` elements.
  absl::StatusOr<std::optional<std::vector<std::string_view>>> texts(std::string_view key, std::uint64_t most) const;
  absl::StatusOr<std::optional<std::vector<std::int64_t>>> integers(std::string_view key, std::uint64_t most) const;

  bool has(std::string_view key) const { return find(key) != nullptr; }
  std::span<const GgufTensor> tensors() const { return tensors_; }
  const std::string& path() const { return path_; }
  // Gives the mapping away, to whoever keeps the tensors' bytes; the views above stay valid with it.
  Mapping release_mapping() { return std::move(mapping_); }

 private:
  friend class GgufParser;
  GgufFile() = default;
  const GgufEntry* find(std::string_view key) const;
  absl::Status wrong_type(const GgufEntry& entry, std::string_view wanted) const;
  absl::StatusOr<const GgufEntry*> find_array(std::string_view key, std::uint64_t most, std::string_view wanted) const;

  std::string path_;
  Mapping mapping_;
  std::span<const std::byte> bytes_;
  std::vector<GgufEntry> entries_;  // sorted by key
  std::vector<GgufTensor> tensors_;
};

}  // namespace tandem
