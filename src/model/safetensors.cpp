#include "model/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <string_view>

#include "fmt/core.h"
#include "model/json_file.h"
#include "model/spec.h"
#include "nlohmann/json.hpp"

namespace tandem {

static_assert(std::endian::native == std::endian::little, "safetensors values are read in place");

namespace {

constexpr std::uint64_t kPrefixBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{32} << 20;

struct Entry {
  SafetensorsTensor tensor;
  std::uint64_t begin;
  std::uint64_t end;
};

std::optional<DType> find_dtype(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  return std::nullopt;
}

// `value` as a size in [least, 2^63); JSON numbers come as any of three types.
std::optional<std::int64_t> read_size(const nlohmann::json& value, std::int64_t least) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
  const auto size = static_cast<std::int64_t>(value.get<std::uint64_t>());
  return size < least ? std::nullopt : std::optional(size);
}

class HeaderReader final {
 public:
  HeaderReader(const std::string& path, std::span<const std::byte> bytes) : path_(path), bytes_(bytes) {}

  absl::StatusOr<std::vector<SafetensorsTensor>> read() {
    std::uint64_t length = 0;
    if (bytes_.size() < kPrefixBytes) return fail(fmt::format("{} bytes are too few for a header", bytes_.size()));
    std::memcpy(&length, bytes_.data(), kPrefixBytes);
    const std::uint64_t most = std::min(kMaxHeaderBytes, bytes_.size() - kPrefixBytes);
    if (length < 2 || length > most) {
      return fail(fmt::format("the header claims {} bytes (at offset 0); it must lie in [2, {}] in a file of {}",
                              length, most, bytes_.size()));
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + kPrefixBytes, length);
    TANDEM_ASSIGN(const nlohmann::json header, parse_json_object(fmt::format("{}: header at offset 8", path_), text));
    data_ = bytes_.subspan(kPrefixBytes + length);
    std::vector<Entry> entries;
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") continue;
      TANDEM_ASSIGN(Entry entry, read_entry(name, value));
      entries.push_back(std::move(entry));
    }
    return place(std::move(entries));
  }

 private:
  absl::Status fail(std::string_view what) const {
    return absl::InvalidArgumentError(fmt::format("{}: {}", path_, what));
  }

  absl::StatusOr<Entry> read_entry(const std::string& name, const nlohmann::json& value) const {
    if (!value.is_object()) return fail(fmt::format("tensor {} is described by no JSON object", name));
    const nlohmann::json* dtype_text = json_member(value, "dtype");
    if (dtype_text == nullptr || !dtype_text->is_string()) return fail(fmt::format("tensor {} has no dtype", name));
    const auto& dtype_value = dtype_text->get_ref<const std::string&>();
    const std::optional<DType> dtype = find_dtype(dtype_value);
    if (!dtype) {
      return fail(
          fmt::format("tensor {} has dtype {}; tandem reads F32, F16 and BF16", name, dtype_value.substr(0, 40)));
    }
    Entry entry = {{name, {.dtype = *dtype}}, 0, 0};
    TANDEM_TRY(read_shape(value, entry.tensor));
    TANDEM_TRY(read_offsets(value, entry));
    return entry;
  }

  absl::Status read_shape(const nlohmann::json& value, SafetensorsTensor& tensor) const {
    const nlohmann::json* shape = json_member(value, "shape");
    if (shape == nullptr || !shape->is_array()) return fail(fmt::format("tensor {} has no shape", tensor.name));
    if (shape->empty() || shape->size() > 2) {
      return fail(
          fmt::format("tensor {} has {} dimensions; vectors and matrices are read", tensor.name, shape->size()));
    }
    std::int64_t sizes[2] = {1, 1};
    for (std::size_t i = 0; i < shape->size(); ++i) {
      const std::optional<std::int64_t> size = read_size((*shape)[i], 1);
      if (!size) return fail(fmt::format("dimension {} of tensor {} is no positive integer", i, tensor.name));
      sizes[2 - shape->size() + i] = *size;
    }
    tensor.source.rows = sizes[0];
    tensor.source.cols = sizes[1];
    return absl::OkStatus();
  }

  absl::Status read_offsets(const nlohmann::json& value, Entry& entry) const {
    const WeightSource& source = entry.tensor.source;
    const std::string& name = entry.tensor.name;
    const nlohmann::json* offsets = json_member(value, "data_offsets");
    if (offsets == nullptr || !offsets->is_array() || offsets->size() != 2) {
      return fail(fmt::format("tensor {} has no pair of data_offsets", name));
    }
    const std::optional<std::int64_t> begin = read_size((*offsets)[0], 0);
    const std::optional<std::int64_t> end = read_size((*offsets)[1], 0);
    if (!begin || !end || *begin > *end)
      return fail(fmt::format("data_offsets of tensor {} are no ascending pair", name));
    entry.begin = static_cast<std::uint64_t>(*begin);
    entry.end = static_cast<std::uint64_t>(*end);
    if (entry.end > data_.size()) {
      return fail(
          fmt::format("tensor {} ends at {} of the data, of which the file holds {} bytes; it is truncated or "
                      "damaged",
                      name, entry.end, data_.size()));
    }
    const std::optional<std::uint64_t> size = tensor_bytes(source.dtype, source.rows, source.cols);
    if (!size || *size != entry.end - entry.begin) {
      return fail(fmt::format("tensor {} of dtype {} and shape [{}, {}] has {} bytes, which does not match", name,
                              dtype_name(source.dtype), source.rows, source.cols, entry.end - entry.begin));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<SafetensorsTensor>> place(std::vector<Entry> entries) const {
    std::ranges::sort(entries, {}, &Entry::begin);
    std::uint64_t end = 0;
    std::vector<SafetensorsTensor> tensors;
    tensors.reserve(entries.size());
    for (Entry& entry : entries) {
      if (entry.begin != end) {
        return fail(fmt::format("tensor {} begins at {} of the data, where {} is due: the tensors {}",
                                entry.tensor.name, entry.begin, end, entry.begin < end ? "overlap" : "leave a hole"));
      }
      end = entry.end;
      entry.tensor.source.data = data_.data() + entry.begin;
      tensors.push_back(std::move(entry.tensor));
    }
    if (end != data_.size()) {
      return fail(fmt::format("the tensors end at {} of the data, the file at {}", end, data_.size()));
    }
    for (const SafetensorsTensor& tensor : tensors) TANDEM_TRY(check_alignment(tensor));
    std::ranges::sort(tensors, {}, &SafetensorsTensor::name);
    return tensors;
  }

  // Kernels load values by their type; every usual writer pads the header to 8 bytes.
  absl::Status check_alignment(const SafetensorsTensor& tensor) const {
    const std::uintptr_t alignment = tensor.source.dtype == DType::kF32 ? 4 : 2;
    if (reinterpret_cast<std::uintptr_t>(tensor.source.data) % alignment == 0) return absl::OkStatus();
    return fail(fmt::format("tensor {} is not aligned to its {} bytes per value; save the file again with padding",
                            tensor.name, alignment));
  }

  const std::string& path_;
  std::span<const std::byte> bytes_;
  std::span<const std::byte> data_;
};

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  TANDEM_ASSIGN(file.mapping_, map_model_file(path));
  TANDEM_ASSIGN(file.tensors_, HeaderReader(file.path_, file.mapping_.bytes()).read());
  return file;
}

}  // namespace tandem
