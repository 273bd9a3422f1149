#include "model/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "fmt/core.h"
#include "model/gguf_values.h"
#include "model/json_file.h"
#include "model/spec.h"

namespace tandem {

static_assert(std::endian::native == std::endian::little, "GGUF values are read in place");

namespace {

// An entry here costs memory beyond its bytes in the file, so that a count is capped, not only bounded by them.
constexpr std::uint64_t kMaxEntries = 1 << 16;
constexpr std::uint64_t kMaxTensors = 1 << 16;
constexpr std::uint64_t kMaxAlignment = 1 << 20;
constexpr std::uint64_t kMaxKeyBytes = 65535;
constexpr std::uint64_t kMaxNameBytes = 255;
constexpr std::uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;              // key length, key, type, value
constexpr std::uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;     // name length, name, n_dims, dim, type, offset

struct TensorType {
  std::uint32_t code;
  std::string_view name;
  std::optional<DType> dtype;
};

constexpr TensorType kTensorTypes[] = {
    {0, "F32", DType::kF32},
    {1, "F16", DType::kF16},
    {2, "Q4_0", DType::kQ4_0},
    {3, "Q4_1", DType::kQ4_1},
    {6, "Q5_0", DType::kQ5_0},
    {7, "Q5_1", {}},
    {8, "Q8_0", DType::kQ8_0},
    {9, "Q8_1", {}},
    {10, "Q2_K", {}},
    {11, "Q3_K", {}},
    {12, "Q4_K", DType::kQ4_K},
    {13, "Q5_K", {}},
    {14, "Q6_K", DType::kQ6_K},
    {15, "Q8_K", {}},
    {16, "IQ2_XXS", {}},
    {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},
    {19, "IQ1_S", {}},
    {20, "IQ4_NL", {}},
    {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},
    {23, "IQ4_XS", {}},
    {24, "I8", {}},
    {25, "I16", {}},
    {26, "I32", {}},
    {27, "I64", {}},
    {28, "F64", {}},
    {29, "IQ1_M", {}},
    {30, "BF16", DType::kBF16},
    {34, "TQ1_0", {}},
    {35, "TQ2_0", {}},
    {39, "MXFP4", {}},
};

}  // namespace

// Reads the file front to back, once; every read is checked against what is left.
class GgufParser final {
 public:
  explicit GgufParser(GgufFile& file) : file_(file), bytes_(file.bytes_) {}

  absl::Status parse() {
    std::uint64_t num_tensors = 0;
    std::uint64_t num_entries = 0;
    TANDEM_TRY(header(num_tensors, num_entries));
    for (std::uint64_t i = 0; i < num_entries; ++i) TANDEM_TRY(entry(i));
    std::ranges::sort(file_.entries_, {}, &GgufEntry::key);
    const auto twice = std::ranges::adjacent_find(file_.entries_, {}, &GgufEntry::key);
    if (twice != file_.entries_.end()) {
      return fail(twice->offset, fmt::format("metadata key \"{}\" is there twice", twice->key));
    }
    for (std::uint64_t i = 0; i < num_tensors; ++i) TANDEM_TRY(tensor_info(i));
    return place_tensors();
  }

 private:
  struct Extent {
    std::uint64_t begin;
    std::uint64_t end;
    std::size_t tensor;
  };

  absl::Status fail(std::uint64_t offset, std::string_view what) const {
    return absl::InvalidArgumentError(fmt::format("{}: {} (at offset {})", file_.path_, what, offset));
  }
  std::uint64_t left() const { return bytes_.size() - offset_; }

  template <class T>
  absl::Status read(std::string_view what, T& value) {
    if (left() < sizeof(T)) {
      return fail(offset_, fmt::format("the file ends inside {}; it is truncated or damaged", what));
    }
    value = load<T>(bytes_.data() + offset_);
    offset_ += sizeof(T);
    return absl::OkStatus();
  }

  absl::Status text(std::string_view what, std::uint64_t most, std::string_view& value) {
    const std::uint64_t start = offset_;
    std::uint64_t length = 0;
    TANDEM_TRY(read(what, length));
    if (length > left()) {
      return fail(start, fmt::format("{} claims {} bytes, {} are left in the file", what, length, left()));
    }
    if (length > most)
      return fail(start, fmt::format("{} is {} bytes long, at most {} are allowed", what, length, most));
    value = view_text(bytes_, offset_, length);
    offset_ += length;
    return absl::OkStatus();
  }

  absl::Status header(std::uint64_t& num_tensors, std::uint64_t& num_entries) {
    std::uint32_t magic = 0;
    std::uint32_t version = 0;
    TANDEM_TRY(read("the magic number", magic));
    if (magic != 0x46554747) return fail(0, "not a GGUF file: it does not begin with \"GGUF\"");
    TANDEM_TRY(read("the version", version));
    if (version != 2 && version != 3) {
      const bool swapped = version != 0 && (version & 0xFFFF) == 0;
      return fail(4, swapped ? std::string("the file is big endian; convert it to little endian")
                             : fmt::format("GGUF version is {}; versions 2 and 3 are read", version));
    }
    TANDEM_TRY(read("the number of tensors", num_tensors));
    TANDEM_TRY(read("the number of metadata entries", num_entries));
    if (num_tensors > kMaxTensors || num_tensors * kMinTensorBytes > left()) {
      return fail(8, fmt::format("the file claims {} tensors; its {} bytes cannot hold them or they exceed {}",
                                 num_tensors, bytes_.size(), kMaxTensors));
    }
    if (num_entries > kMaxEntries || num_entries * kMinEntryBytes > left()) {
      return fail(16,
                  fmt::format("the file claims {} metadata entries; its {} bytes cannot hold them or they exceed {}",
                              num_entries, bytes_.size(), kMaxEntries));
    }
    return absl::OkStatus();
  }

  absl::Status entry(std::uint64_t idx) {
    GgufEntry entry;
    const std::uint64_t start = offset_;
    std::uint32_t code = 0;
    TANDEM_TRY(text(fmt::format("the key of metadata entry {}", idx), kMaxKeyBytes, entry.key));
    if (entry.key.empty()) return fail(start, fmt::format("metadata entry {} has an empty key", idx));
    const std::string what = fmt::format("metadata \"{}\"", entry.key);
    TANDEM_TRY(read(what, code));
    if (code == static_cast<std::uint32_t>(GgufType::kArray)) {
      entry.is_array = true;
      TANDEM_TRY(read(what, code));
      if (code == static_cast<std::uint32_t>(GgufType::kArray)) {
        return fail(offset_ - 4, fmt::format("{} is an array of arrays, which is not read", what));
      }
    }
    const std::optional<std::uint64_t> bytes = value_bytes(code);
    if (!bytes) return fail(offset_ - 4, fmt::format("{} has the unknown value type {}", what, code));
    entry.type = static_cast<GgufType>(code);
    if (entry.is_array) TANDEM_TRY(read(what, entry.count));
    entry.offset = offset_;
    TANDEM_TRY(skip_values(what, entry, *bytes));
    file_.entries_.push_back(entry);
    return absl::OkStatus();
  }

  absl::Status skip_values(std::string_view what, const GgufEntry& entry, std::uint64_t bytes) {
    // A string is at least its 8-byte length.
    if (entry.count > left() / (bytes == 0 ? 8 : bytes)) {
      return fail(entry.offset, fmt::format("{} claims {} values of type {}, {} bytes are left in the file", what,
                                            entry.count, type_name(entry.type), left()));
    }
    if (bytes == 0) {
      std::string_view skipped;
      for (std::uint64_t i = 0; i < entry.count; ++i) TANDEM_TRY(text(what, UINT64_MAX, skipped));
      return absl::OkStatus();
    }
    if (entry.type == GgufType::kBool) {
      for (std::uint64_t i = 0; i < entry.count; ++i) {
        if (load<std::uint8_t>(bytes_.data() + offset_ + i) > 1) {
          return fail(offset_ + i, fmt::format("{} is a boolean of neither 0 nor 1", what));
        }
      }
    }
    offset_ += entry.count * bytes;
    return absl::OkStatus();
  }

  absl::Status tensor_info(std::uint64_t idx) {
    GgufTensor tensor;
    tensor.info_offset = offset_;
    TANDEM_TRY(text(fmt::format("the name of tensor {}", idx), kMaxNameBytes, tensor.name));
    if (tensor.name.empty()) return fail(tensor.info_offset, fmt::format("tensor {} has an empty name", idx));
    const std::string what = fmt::format("tensor {}", tensor.name);
    std::uint32_t num_dims = 0;
    TANDEM_TRY(read(what, num_dims));
    if (num_dims < 1 || num_dims > 4) {
      return fail(offset_ - 4, fmt::format("{} has {} dimensions; 1 to 4 are possible", what, num_dims));
    }
    std::array<std::uint64_t, 4> dims = {1, 1, 1, 1};
    for (std::uint32_t i = 0; i < num_dims; ++i) {
      TANDEM_TRY(read(what, dims[i]));
      if (dims[i] == 0 || dims[i] > INT64_MAX) {
        return fail(offset_ - 8, fmt::format("dimension {} of {} is {}; it must be positive", i, what,
                                             static_cast<std::int64_t>(dims[i])));
      }
    }
    if (dims[2] != 1 || dims[3] != 1) {
      return fail(tensor.info_offset, fmt::format("{} has the shape [{}, {}, {}, {}]; matrices and vectors are read",
                                                  what, dims[0], dims[1], dims[2], dims[3]));
    }
    tensor.cols = static_cast<std::int64_t>(dims[0]);
    tensor.rows = static_cast<std::int64_t>(dims[1]);
    return tensor_place(what, tensor);
  }

  absl::Status tensor_place(const std::string& what, GgufTensor& tensor) {
    std::uint32_t code = 0;
    TANDEM_TRY(read(what, code));
    const auto type = std::ranges::find(kTensorTypes, code, &TensorType::code);
    const bool known = type != std::end(kTensorTypes);
    if (!known || !type->dtype) {
      return fail(offset_ - 4,
                  fmt::format("{} has type {} ({}); tandem reads F32, F16, BF16, Q8_0, Q6_K, Q5_0, Q4_K, Q4_1 and Q4_0",
                              what, known ? type->name : "unknown", code));
    }
    tensor.dtype = *type->dtype;
    const std::optional<std::uint64_t> size = tensor_bytes(tensor.dtype, tensor.rows, tensor.cols);
    if (!size) {
      return fail(tensor.info_offset, fmt::format("{} of type {} cannot have the shape [{}, {}]", what,
                                                  dtype_name(tensor.dtype), tensor.rows, tensor.cols));
    }
    Extent extent = {};
    TANDEM_TRY(read(what, extent.begin));
    if (*size > bytes_.size() || extent.begin > bytes_.size() - *size) {
      return fail(offset_ - 8, fmt::format("{} claims {} bytes from {} of the data, more than the file's {}", what,
                                           *size, extent.begin, bytes_.size()));
    }
    extent.end = extent.begin + *size;
    extent.tensor = file_.tensors_.size();
    extents_.push_back(extent);
    file_.tensors_.push_back(tensor);
    return absl::OkStatus();
  }

  absl::StatusOr<std::uint64_t> alignment() const {
    TANDEM_ASSIGN(const auto stated, file_.integer("general.alignment", 0, INT64_MAX));
    const auto value = static_cast<std::uint64_t>(stated.value_or(32));
    // The format asks for a multiple of 8; that also makes every element type aligned in memory.
    if (value < 8 || value > kMaxAlignment || !std::has_single_bit(value)) {
      const GgufEntry* entry = file_.find("general.alignment");
      return fail(entry->offset,
                  fmt::format("general.alignment is {}; it must be a power of two in [8, {}]", value, kMaxAlignment));
    }
    return value;
  }

  absl::Status place_tensors() {
    TANDEM_ASSIGN(const std::uint64_t align, alignment());
    const std::uint64_t data = (offset_ + align - 1) / align * align;
    std::ranges::sort(extents_, {}, &Extent::begin);
    std::uint64_t end = 0;
    for (const Extent& extent : extents_) {
      GgufTensor& tensor = file_.tensors_[extent.tensor];
      if (extent.begin % align != 0) {
        return fail(tensor.info_offset,
                    fmt::format("tensor {} begins at {} of the data, no multiple of the alignment {}", tensor.name,
                                extent.begin, align));
      }
      if (extent.begin < end) {
        return fail(tensor.info_offset,
                    fmt::format("tensor {} begins at {} of the data, inside another that ends at {}", tensor.name,
                                extent.begin, end));
      }
      end = extent.end;
      if (data > bytes_.size() || end > bytes_.size() - data) {
        return fail(tensor.info_offset, fmt::format("tensor {} ends at byte {}, the file at {}; it is truncated",
                                                    tensor.name, data + end, bytes_.size()));
      }
      tensor.data = bytes_.subspan(data + extent.begin, extent.end - extent.begin);
    }
    return check_names();
  }

  absl::Status check_names() const {
    std::vector<const GgufTensor*> by_name;
    by_name.reserve(file_.tensors_.size());
    for (const GgufTensor& tensor : file_.tensors_) by_name.push_back(&tensor);
    const auto name = [](const GgufTensor* tensor) { return tensor->name; };
    std::ranges::sort(by_name, {}, name);
    const auto twice = std::ranges::adjacent_find(by_name, {}, name);
    if (twice == by_name.end()) return absl::OkStatus();
    return fail((*twice)->info_offset, fmt::format("tensor {} is there twice", (*twice)->name));
  }

  GgufFile& file_;
  std::span<const std::byte> bytes_;
  std::uint64_t offset_ = 0;
  std::vector<Extent> extents_;
};

absl::StatusOr<GgufFile> GgufFile::open(const std::string& path) {
  GgufFile file;
  file.path_ = path;
  TANDEM_ASSIGN(file.mapping_, map_model_file(path));
  file.bytes_ = file.mapping_.bytes();
  TANDEM_TRY(GgufParser(file).parse());
  return file;
}

}  // namespace tandem
