#include "kernels/cpu/memory.h"

#include <sys/mman.h>

#include "fmt/core.h"

namespace tandem::cpu {

absl::StatusOr<FileDescriptor> MemfdSource::allocate(std::string_view name, std::size_t bytes) {
  if (bytes == 0) {
    return absl::InvalidArgumentError(fmt::format("region {} would hold 0 bytes; ask for at least one", name));
  }
  return create_memfd(name, bytes);
}

absl::Status MemfdSource::seal(const FileDescriptor& region) { return seal_memfd_read_only(region); }

absl::StatusOr<Mapping> MemfdSource::map(const FileDescriptor& region, std::size_t bytes, Access access) {
  TANDEM_ASSIGN(Mapping mapping, Mapping::map(region, bytes, access));
  // Fewer TLB misses where the system gives huge pages to shared memory; elsewhere it says no, and no harm is done.
  ::madvise(mapping.data(), mapping.size(), MADV_HUGEPAGE);
  return mapping;
}

}  // namespace tandem::cpu
