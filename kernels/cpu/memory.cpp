#include "kernels/cpu/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "fmt/core.h"

namespace tandem::cpu {
namespace {

// Maps the pages that the region has, so that no step finds them missing one by one. Where nobody has written yet
// there are none, and none are taken.
void map_present_pages(const FileDescriptor& region, const Mapping& mapping) {
  const auto size = static_cast<off_t>(mapping.size());
  off_t begin = ::lseek(region.get(), 0, SEEK_DATA);
  while (begin >= 0 && begin < size) {
    const off_t end = ::lseek(region.get(), begin, SEEK_HOLE);
    if (end <= begin) return;
    ::madvise(mapping.data() + begin, static_cast<std::size_t>(std::min(end, size) - begin), MADV_POPULATE_READ);
    begin = ::lseek(region.get(), end, SEEK_DATA);
  }
}

}  // namespace

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
  map_present_pages(region, mapping);
  return mapping;
}

}  // namespace tandem::cpu
