// What the owner and its clients say to each other: one request and one answer per SOCK_SEQPACKET message, between
// processes of one user on one host. Plain structs; every field is checked by whoever receives it.
#pragma once

#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/handles.h"

namespace tandem::owner_wire {

inline constexpr std::uint32_t kMagic = 0x54444f32;
inline constexpr std::size_t kMaxNameBytes = 63;

enum class Verb : std::uint32_t { kAttach = 1, kPublish = 2, kDrop = 3, kStat = 4 };
enum class Role : std::uint32_t { kNone = 0, kFill = 1, kReady = 2 };

struct Request {
  std::uint32_t magic = kMagic;
  Verb verb = Verb::kStat;
  std::uint64_t value = 0;  // attach: bytes; publish: Seal
  char name[kMaxNameBytes + 1] = {};
};

// Followed by num_records RegionRecords. A role other than kNone comes with one descriptor.
struct Answer {
  std::uint32_t magic = kMagic;
  std::int32_t code = 0;  // absl::StatusCode
  Role role = Role::kNone;
  std::uint32_t num_records = 0;
  char text[240] = {};
};

struct RegionRecord {
  std::uint64_t bytes = 0;
  std::uint32_t state = 0;  // RegionState
  std::int32_t filler_pid = 0;
  char name[kMaxNameBytes + 1] = {};
};

// Names are 1 to 63 of A-Z a-z 0-9 . _ -
absl::Status check_name(std::string_view name);
// The text of a fixed field, up to its first NUL.
template <std::size_t N>
std::string_view field_text(const char (&field)[N]) {
  const std::string_view all(field, N);
  return all.substr(0, all.find('\0'));
}
// Copies what fits and leaves the last byte NUL.
void set_field(std::span<char> field, std::string_view text);

struct Address {
  sockaddr_un socket = {};
  socklen_t length = 0;
};
// "@name": the abstract namespace; otherwise a path.
absl::StatusOr<Address> parse_address(const std::string& address);

// One message, with a descriptor when `fd` >= 0. Never blocks and raises no signal; errno_status on failure.
absl::Status send_message(const FileDescriptor& socket, std::span<const std::byte> message, int fd);

// The pid of the process at the other end. PermissionDenied: it runs as another user.
absl::StatusOr<int> check_peer(const FileDescriptor& socket);

}  // namespace tandem::owner_wire
