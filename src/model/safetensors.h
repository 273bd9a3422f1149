// One .safetensors file: its header as a table of tensors, every offset checked against the file while it is
// opened, so that a short or patched file never reads as zeros. Immutable; owns its mapping until released.
// Format: 8 bytes of header length, a JSON object, then the tensors' bytes without holes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/handles.h"
#include "tandem/backend.h"

namespace tandem {

struct SafetensorsTensor {
  std::string name;
  WeightSource source;  // points into the file's mapping
};

class SafetensorsFile final {
 public:
  // Every error names the file and the tensor or offset at fault.
  static absl::StatusOr<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }  // sorted by name
  // Gives the mapping away, to whoever keeps the tensors' bytes.
  Mapping release_mapping() { return std::move(mapping_); }

 private:
  SafetensorsFile() = default;
  std::string path_;
  Mapping mapping_;
  std::vector<SafetensorsTensor> tensors_;
};

}  // namespace tandem
