#include "support/allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::uint64_t> num_of_process{0};
thread_local std::uint64_t num_of_thread = 0;
thread_local std::uint64_t bytes_of_thread = 0;

void* counted(std::size_t bytes, std::size_t alignment) {
  num_of_process.fetch_add(1, std::memory_order_relaxed);
  ++num_of_thread;
  bytes_of_thread += bytes;
  void* memory = nullptr;
  return ::posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
}

}  // namespace

// The other forms of new and delete end in these.
void* operator new(std::size_t bytes) {
  void* memory = counted(bytes, alignof(std::max_align_t));
  if (memory == nullptr) std::abort();
  return memory;
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  void* memory = counted(bytes, static_cast<std::size_t>(alignment));
  if (memory == nullptr) std::abort();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}

namespace tandem::test {

std::uint64_t allocations_of_process() { return num_of_process.load(std::memory_order_relaxed); }
std::uint64_t allocations_of_thread() { return num_of_thread; }
std::uint64_t bytes_allocated_by_thread() { return bytes_of_thread; }

}  // namespace tandem::test
