// The CPU as a device: memfd regions, a thread team per stream, kernels chosen for this processor.
// The backend is immutable after creation and shared by threads; each stream belongs to the thread that opened it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tandem/backend.h"

namespace tandem::cpu {

struct CpuOptions {
  std::string isa;  // "avx2", "avx512"; empty: the widest this processor has
  int threads = 0;  // units of compute; 0: as many as cores the calling thread may run on
};

// Fails when the processor lacks the instruction set asked for, naming those it has.
absl::StatusOr<std::unique_ptr<Backend>> create_cpu_backend(const CpuOptions& options);

}  // namespace tandem::cpu
