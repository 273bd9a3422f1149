// Shareable CPU memory: anonymous memory files, mapped by whoever holds the descriptor. Stateless.
#pragma once

#include "tandem/backend.h"

namespace tandem::cpu {

class MemfdSource final : public MemorySource {
 public:
  absl::StatusOr<FileDescriptor> allocate(std::string_view name, std::size_t bytes) override;
  absl::Status seal(const FileDescriptor& region) override;
  absl::StatusOr<Mapping> map(const FileDescriptor& region, std::size_t bytes, Access access) override;
};

}  // namespace tandem::cpu
