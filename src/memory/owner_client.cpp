#include "memory/owner_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/process_state.h"
#include "base/status.h"
#include "fmt/core.h"
#include "memory/owner.h"
#include "memory/owner_wire.h"

namespace tandem {
namespace {

using owner_wire::Role;
using owner_wire::Verb;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRetryEvery{5};
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
constexpr std::size_t kMaxAnswerBytes =
    sizeof(owner_wire::Answer) + kMaxOwnerRegions * sizeof(owner_wire::RegionRecord);

// Takes every descriptor out of a received message, so that an unexpected one is closed and not leaked.
std::vector<FileDescriptor> take_descriptors(msghdr& header) {
  std::vector<FileDescriptor> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; at + sizeof(int) <= part->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + at, sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

absl::Status gone() { return absl::UnavailableError("the owner closed the connection"); }

}  // namespace

struct OwnerClient::Answer {
  Role role = Role::kNone;
  FileDescriptor fd;
  std::vector<RegionInfo> regions;
};

absl::StatusOr<OwnerClient> OwnerClient::connect(const std::string& address, std::chrono::milliseconds timeout,
                                                 const std::function<bool()>& may_come) {
  TANDEM_ASSIGN(const owner_wire::Address where, owner_wire::parse_address(address));
  const auto deadline = Clock::now() + std::min(timeout, kLongest);
  while (true) {
    FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.valid()) return errno_status("open a socket to the owner");
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&where.socket), where.length) == 0) {
      TANDEM_ASSIGN(const int pid, owner_wire::check_peer(socket));
      return OwnerClient(std::move(socket), pid);
    }
    const bool passes = errno == ECONNREFUSED || errno == ENOENT || errno == EAGAIN || errno == EINTR;
    if (!passes) return errno_status(fmt::format("connect to the owner at {}", address));
    if (Clock::now() >= deadline || (may_come && !may_come())) {
      return absl::UnavailableError(
          fmt::format("no owner answered at {} within {} ms; is `tandem owner` running?", address, timeout.count()));
    }
    std::this_thread::sleep_for(kRetryEvery);
  }
}

struct OwnerClient::Message {
  std::vector<std::byte> bytes;
  std::vector<FileDescriptor> fds;
};

absl::StatusOr<OwnerClient::Message> OwnerClient::receive(std::string_view name, std::chrono::milliseconds timeout) {
  Message message;
  message.bytes.resize(kMaxAnswerBytes);
  iovec part = {.iov_base = message.bytes.data(), .iov_len = message.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
  StopDetector stop;
  const auto deadline = Clock::now() + std::min(timeout, kLongest);
  while (true) {
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    const ssize_t got = ::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got > 0) {
      message.bytes.resize(static_cast<std::size_t>(got));
      message.fds = take_descriptors(header);
      return message;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) return gone();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (stop.poll(peer_pid_)) {
      return absl::DeadlineExceededError(fmt::format(
          "the owner does not answer, its process {} is stopped; `kill -CONT {}` lets it go on", peer_pid_, peer_pid_));
    }
    if (left.count() <= 0) {
      return absl::DeadlineExceededError(
          fmt::format("the owner did not answer within {} ms about region '{}'", timeout.count(), name));
    }
    pollfd ready = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
    ::poll(&ready, 1, static_cast<int>(std::min<std::int64_t>(left.count(), StopDetector::kPollEveryUs / 1000)));
  }
}

absl::StatusOr<OwnerClient::Answer> OwnerClient::call(std::uint32_t verb, std::string_view name, std::uint64_t value,
                                                      std::chrono::milliseconds timeout) {
  if (!socket_.valid()) return gone();
  owner_wire::Request request{.verb = static_cast<Verb>(verb), .value = value};
  owner_wire::set_field(request.name, name);
  // A refusal may be waiting on a connection that is already closed: a failed send is told by what is read.
  owner_wire::send_message(socket_, std::as_bytes(std::span(&request, 1)), -1).IgnoreError();
  absl::StatusOr<Message> message = receive(name, timeout);
  if (!message.ok()) {
    socket_ = FileDescriptor();  // the answer could come later and be taken for another's
    return message.status();
  }
  const std::vector<std::byte>& bytes = message->bytes;
  std::vector<FileDescriptor>& fds = message->fds;

  owner_wire::Answer reply;
  if (bytes.size() >= sizeof(reply)) std::memcpy(&reply, bytes.data(), sizeof(reply));
  const bool has_fd = reply.role == Role::kFill || reply.role == Role::kReady;
  if (bytes.size() < sizeof(reply) || reply.magic != owner_wire::kMagic || reply.num_records > kMaxOwnerRegions ||
      fds.size() != (has_fd ? 1U : 0U) ||
      bytes.size() != sizeof(reply) + reply.num_records * sizeof(owner_wire::RegionRecord)) {
    socket_ = FileDescriptor();
    return absl::DataLossError("the owner sent an answer of another version; use the same binary everywhere");
  }
  if (reply.code != 0) {
    return absl::Status(static_cast<absl::StatusCode>(reply.code), std::string(owner_wire::field_text(reply.text)));
  }
  Answer answer{.role = reply.role, .fd = {}, .regions = {}};
  if (has_fd) answer.fd = std::move(fds.front());
  for (std::uint32_t i = 0; i < reply.num_records; ++i) {
    owner_wire::RegionRecord record;
    std::memcpy(&record, bytes.data() + sizeof(reply) + i * sizeof(record), sizeof(record));
    answer.regions.push_back({.name = std::string(owner_wire::field_text(record.name)),
                              .bytes = record.bytes,
                              .state = static_cast<RegionState>(record.state),
                              .filler_pid = record.filler_pid});
  }
  return answer;
}

absl::StatusOr<AttachedRegion> OwnerClient::attach(std::string_view name, std::size_t bytes,
                                                   std::chrono::milliseconds timeout) {
  TANDEM_TRY(owner_wire::check_name(name));
  TANDEM_ASSIGN(Answer answer, call(static_cast<std::uint32_t>(Verb::kAttach), name, bytes, timeout));
  if (!answer.fd.valid()) return absl::DataLossError(fmt::format("the owner sent no descriptor of region {}", name));
  return AttachedRegion{.fd = std::move(answer.fd), .must_fill = answer.role == Role::kFill};
}

absl::Status OwnerClient::publish(std::string_view name, Seal seal) {
  TANDEM_TRY(owner_wire::check_name(name));
  return call(static_cast<std::uint32_t>(Verb::kPublish), name, static_cast<std::uint64_t>(seal), kAnswerTimeout)
      .status();
}

absl::Status OwnerClient::drop(std::string_view name) {
  TANDEM_TRY(owner_wire::check_name(name));
  return call(static_cast<std::uint32_t>(Verb::kDrop), name, 0, kAnswerTimeout).status();
}

bool OwnerClient::closed() const {
  if (!socket_.valid()) return true;
  // It says nothing without being asked, so that whatever there is to read is the end.
  pollfd ready = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&ready, 1, 0) > 0;
}

absl::StatusOr<std::vector<RegionInfo>> OwnerClient::stat() {
  TANDEM_ASSIGN(Answer answer, call(static_cast<std::uint32_t>(Verb::kStat), {}, 0, kAnswerTimeout));
  return std::move(answer.regions);
}

}  // namespace tandem
