#include "ipc/control_page.h"

#include <new>

#include "base/status.h"
#include "fmt/core.h"

namespace tandem {
namespace {

constexpr std::uint64_t kMagic = 0x54444d4354524c31;
constexpr std::uint32_t kVersion = 2;

absl::Status check_memory(std::span<std::byte> memory) {
  if (memory.size() < sizeof(ControlPage)) {
    return absl::InvalidArgumentError(
        fmt::format("a control page needs {} bytes, its region has {}", sizeof(ControlPage), memory.size()));
  }
  if (reinterpret_cast<std::uintptr_t>(memory.data()) % alignof(ControlPage) != 0) {
    return absl::InvalidArgumentError(fmt::format("a control page must be aligned to {} bytes", alignof(ControlPage)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ControlPage*> init_control_page(std::span<std::byte> memory) {
  TANDEM_TRY(check_memory(memory));
  auto* page = new (memory.data()) ControlPage{};
  page->version = kVersion;
  page->magic = kMagic;
  return page;
}

absl::StatusOr<ControlPage*> open_control_page(std::span<std::byte> memory) {
  TANDEM_TRY(check_memory(memory));
  auto* page = std::launder(reinterpret_cast<ControlPage*>(memory.data()));
  if (page->magic != kMagic || page->version != kVersion) {
    return absl::FailedPreconditionError(
        fmt::format("no control page of version {} here (magic {:#x}, version {}); restart the owner with this binary",
                    kVersion, page->magic, page->version));
  }
  return page;
}

}  // namespace tandem
