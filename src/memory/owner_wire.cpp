#include "memory/owner_wire.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "fmt/core.h"

namespace tandem::owner_wire {

absl::Status check_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  if (name.empty() || name.size() > kMaxNameBytes || !std::all_of(name.begin(), name.end(), allowed)) {
    return absl::InvalidArgumentError(fmt::format(
        "a region's name is 1 to {} characters of A-Z a-z 0-9 . _ -; this one has {}", kMaxNameBytes, name.size()));
  }
  return absl::OkStatus();
}

void set_field(std::span<char> field, std::string_view text) {
  const std::size_t bytes = std::min(text.size(), field.size() - 1);
  std::copy_n(text.data(), bytes, field.data());
  std::fill(field.begin() + static_cast<std::ptrdiff_t>(bytes), field.end(), '\0');
}

absl::StatusOr<Address> parse_address(const std::string& address) {
  Address result;
  result.socket.sun_family = AF_UNIX;
  const std::size_t room = sizeof(result.socket.sun_path) - 1;
  if (address.size() < 2 || address.size() > room || address.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        fmt::format("owner address '{}' must be @name or a path of 2 to {} bytes", address, room));
  }
  std::memcpy(result.socket.sun_path, address.data(), address.size());
  const bool is_abstract = address.front() == '@';
  if (is_abstract) result.socket.sun_path[0] = '\0';
  // An abstract name is all bytes of the length; a path ends with its NUL.
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size() + (is_abstract ? 0 : 1));
  return result;
}

absl::Status send_message(const FileDescriptor& socket, std::span<const std::byte> message, int fd) {
  iovec part = {.iov_base = const_cast<std::byte*>(message.data()), .iov_len = message.size()};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(int));
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return errno_status("send on the owner's socket");
  return absl::OkStatus();
}

absl::StatusOr<int> check_peer(const FileDescriptor& socket) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return errno_status("ask who is at the other end of the owner's socket");
  }
  if (peer.uid != ::geteuid()) {
    return absl::PermissionDeniedError(
        fmt::format("the other end of the owner's socket runs as user {}, this process as {}; both must be the same",
                    peer.uid, ::geteuid()));
  }
  return peer.pid;
}

}  // namespace tandem::owner_wire
