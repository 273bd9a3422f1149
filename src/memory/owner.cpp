#include "memory/owner.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "fmt/core.h"
#include "memory/owner_client.h"
#include "memory/owner_wire.h"

namespace tandem {
namespace {

using owner_wire::Request;
using owner_wire::Role;
using owner_wire::Verb;

using PeerId = std::uint64_t;  // never used twice, so that a stale event finds nobody

// epoll's tags of the two descriptors that are no peers.
constexpr PeerId kListener = 0;
constexpr PeerId kStop = 1;
constexpr PeerId kFirstPeer = 2;
constexpr int kTickMs = 1000;

struct Peer {
  FileDescriptor socket;
  int pid = 0;
  bool waits = false;  // for a region that another peer fills; it owes us silence
};

struct Region {
  FileDescriptor fd;
  std::size_t bytes = 0;
  RegionState state = RegionState::kFilling;
  PeerId filler = 0;
  std::vector<PeerId> waiters;  // first come, first to fill
};

class Owner final {
 public:
  Owner(OwnerOptions options, MemorySource& source, FileDescriptor epoll)
      : options_(std::move(options)), source_(source), epoll_(std::move(epoll)) {}

  absl::Status start();
  absl::Status run();

 private:
  absl::Status watch(int fd, PeerId tag);
  void accept_peer();
  void refuse(const FileDescriptor& socket, const absl::Status& why);
  void serve(PeerId id);
  void handle(PeerId id, const Request& request);
  absl::Status attach(PeerId id, std::string_view name, std::uint64_t bytes);
  absl::Status publish(PeerId id, std::string_view name, std::uint64_t seal);
  absl::Status drop(PeerId id, std::string_view name);
  void send_stat(PeerId id);
  void answer(PeerId id, const absl::Status& status, Role role = Role::kNone, int fd = -1);
  void send_to(PeerId id, std::span<const std::byte> message, int fd);
  void pass_on(std::string_view name);
  void forget(PeerId id);
  void report(const std::string& line) const {
    if (options_.report) options_.report(line);
  }

  OwnerOptions options_;
  MemorySource& source_;
  FileDescriptor epoll_;
  bool accepting_ = true;
  PeerId next_peer_ = kFirstPeer;
  std::map<PeerId, Peer> peers_;
  std::map<std::string, Region, std::less<>> regions_;
  std::vector<PeerId> doomed_;  // to be forgotten once the event at hand is dealt with
};

absl::Status Owner::watch(int fd, PeerId tag) {
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = tag}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return errno_status("watch a descriptor");
  return absl::OkStatus();
}

absl::Status Owner::start() {
  TANDEM_TRY(watch(options_.listener.get(), kListener));
  if (options_.stop_fd >= 0) TANDEM_TRY(watch(options_.stop_fd, kStop));
  return absl::OkStatus();
}

absl::Status Owner::run() {
  std::array<epoll_event, 32> events;
  while (!options_.keep_running || options_.keep_running()) {
    const int timeout = options_.keep_running || !accepting_ ? kTickMs : -1;
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout);
    if (count < 0 && errno != EINTR) return errno_status("wait for the owner's peers");
    if (!accepting_) accepting_ = watch(options_.listener.get(), kListener).ok();
    for (const epoll_event& event : std::span(events).first(static_cast<std::size_t>(std::max(count, 0)))) {
      if (event.data.u64 == kStop) return absl::OkStatus();
      if (event.data.u64 == kListener) {
        accept_peer();
      } else {
        serve(event.data.u64);
      }
      while (!doomed_.empty()) {
        const PeerId id = doomed_.back();
        doomed_.pop_back();
        forget(id);
      }
    }
  }
  return absl::OkStatus();
}

void Owner::accept_peer() {
  FileDescriptor socket(::accept4(options_.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
    // Out of descriptors or memory: the listener would stay readable, so leave it alone until the next tick.
    report(fmt::format("cannot accept a peer, trying again in {} ms: {}", kTickMs, std::strerror(errno)));
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, options_.listener.get(), nullptr);
    accepting_ = false;
    return;
  }
  const absl::StatusOr<int> pid = owner_wire::check_peer(socket);
  if (!pid.ok()) return refuse(socket, pid.status());
  if (peers_.size() >= kMaxOwnerPeers) {
    return refuse(socket, absl::ResourceExhaustedError(fmt::format("the owner has {} peers already", peers_.size())));
  }
  const PeerId id = next_peer_++;
  if (const absl::Status status = watch(socket.get(), id); !status.ok()) return refuse(socket, status);
  peers_[id] = {.socket = std::move(socket), .pid = *pid};
  report(fmt::format("peer {} came", id));
}

void Owner::refuse(const FileDescriptor& socket, const absl::Status& why) {
  report(fmt::format("refused a peer: {}", message(why)));
  // A request left unread at the closing would reset the connection and take the answer with it.
  ::shutdown(socket.get(), SHUT_RD);
  Request unread;
  while (::recv(socket.get(), &unread, sizeof(unread), 0) > 0) {
  }
  owner_wire::Answer reply{.code = static_cast<std::int32_t>(why.code())};
  owner_wire::set_field(reply.text, message(why));
  owner_wire::send_message(socket, std::as_bytes(std::span(&reply, 1)), -1).IgnoreError();  // it is going anyway
}

void Owner::serve(PeerId id) {
  const auto peer = peers_.find(id);
  if (peer == peers_.end()) return;
  Request request;
  // No room for control data: descriptors that a peer sends are closed by the kernel.
  const ssize_t got = ::recv(peer->second.socket.get(), &request, sizeof(request), MSG_TRUNC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    doomed_.push_back(id);
  } else if (got != sizeof(request) || request.magic != owner_wire::kMagic || peer->second.waits) {
    report(fmt::format("peer {} sent {} bytes that are no request", id, got));
    doomed_.push_back(id);
  } else {
    handle(id, request);
  }
}

void Owner::handle(PeerId id, const Request& request) {
  const std::string_view name = owner_wire::field_text(request.name);
  if (request.verb == Verb::kStat) return send_stat(id);
  absl::Status status = owner_wire::check_name(name);
  if (status.ok()) {
    switch (request.verb) {
      case Verb::kAttach:
        status = attach(id, name, request.value);
        if (status.ok()) return;  // answered, or it waits
        break;
      case Verb::kPublish: status = publish(id, name, request.value); break;
      case Verb::kDrop: status = drop(id, name); break;
      default:
        status = absl::UnimplementedError(fmt::format("the owner knows no request {}; use the same binary everywhere",
                                                      static_cast<std::uint32_t>(request.verb)));
    }
  }
  answer(id, status);
}

absl::Status Owner::attach(PeerId id, std::string_view name, std::uint64_t bytes) {
  const auto found = regions_.find(name);
  if (found == regions_.end()) {
    if (bytes == 0 || bytes > options_.max_region_bytes) {
      return absl::InvalidArgumentError(
          fmt::format("region {} of {} bytes: the owner makes 1 to {}", name, bytes, options_.max_region_bytes));
    }
    if (regions_.size() >= kMaxOwnerRegions) {
      return absl::ResourceExhaustedError(fmt::format("the owner has {} regions already; drop some", regions_.size()));
    }
    TANDEM_ASSIGN(FileDescriptor fd, source_.allocate(name, bytes));
    Region& region = regions_[std::string(name)];
    region.fd = std::move(fd);
    region.bytes = bytes;
    region.filler = id;
    report(fmt::format("peer {} fills region {} of {} bytes", id, name, bytes));
    answer(id, absl::OkStatus(), Role::kFill, region.fd.get());
    return absl::OkStatus();
  }
  Region& region = found->second;
  if (bytes != region.bytes) {
    return absl::InvalidArgumentError(
        fmt::format("region {} has {} bytes, {} were asked for; drop it first or use "
                    "the same configuration",
                    name, region.bytes, bytes));
  }
  if (region.state != RegionState::kFilling) {
    answer(id, absl::OkStatus(), Role::kReady, region.fd.get());
  } else if (region.filler == id) {
    return absl::FailedPreconditionError(fmt::format("region {} is being filled by this very peer", name));
  } else {
    region.waiters.push_back(id);
    peers_[id].waits = true;
  }
  return absl::OkStatus();
}

absl::Status Owner::publish(PeerId id, std::string_view name, std::uint64_t seal) {
  const auto found = regions_.find(name);
  if (found == regions_.end() || found->second.state != RegionState::kFilling || found->second.filler != id) {
    return absl::FailedPreconditionError(fmt::format("region {} is not being filled by this peer", name));
  }
  Region& region = found->second;
  if (seal > static_cast<std::uint64_t>(Seal::kReadOnly)) {
    return absl::InvalidArgumentError(fmt::format("publish region {}: there is no seal {}", name, seal));
  }
  const bool read_only = seal == static_cast<std::uint64_t>(Seal::kReadOnly);
  if (read_only) {
    if (absl::Status status = source_.seal(region.fd); !status.ok()) {
      return annotate(status, fmt::format("publish region {}", name));
    }
  }
  region.state = read_only ? RegionState::kSealed : RegionState::kReady;
  region.filler = 0;
  report(fmt::format("region {} is ready{}", name, read_only ? ", sealed" : ""));
  for (const PeerId waiter : std::exchange(region.waiters, {})) {
    peers_[waiter].waits = false;
    answer(waiter, absl::OkStatus(), Role::kReady, region.fd.get());
  }
  return absl::OkStatus();
}

absl::Status Owner::drop(PeerId id, std::string_view name) {
  const auto found = regions_.find(name);
  if (found == regions_.end()) return absl::NotFoundError(fmt::format("the owner holds no region {}", name));
  if (found->second.state != RegionState::kFilling) {
    regions_.erase(found);
  } else if (found->second.filler == id) {
    pass_on(name);
  } else {
    return absl::FailedPreconditionError(fmt::format("region {} is being filled by another peer", name));
  }
  report(fmt::format("peer {} dropped region {}", id, name));
  return absl::OkStatus();
}

// The filler is gone: its bytes, which it may still be writing, go with it, and the next waiter starts afresh.
void Owner::pass_on(std::string_view name) {
  const auto found = regions_.find(name);
  Region& region = found->second;
  while (!region.waiters.empty()) {
    const PeerId next = region.waiters.front();
    region.waiters.erase(region.waiters.begin());
    peers_[next].waits = false;
    auto fd = source_.allocate(name, region.bytes);
    if (!fd.ok()) {
      answer(next, fd.status());
      continue;
    }
    region.fd = *std::move(fd);
    region.filler = next;
    report(fmt::format("peer {} takes over filling region {}", next, name));
    answer(next, absl::OkStatus(), Role::kFill, region.fd.get());
    return;
  }
  regions_.erase(found);
}

void Owner::forget(PeerId id) {
  const auto peer = peers_.find(id);
  if (peer == peers_.end()) return;
  peers_.erase(peer);  // closes the socket, which also ends the watch
  report(fmt::format("peer {} went", id));
  std::vector<std::string> unfilled;
  for (auto& [name, region] : regions_) {
    std::erase(region.waiters, id);
    if (region.state == RegionState::kFilling && region.filler == id) unfilled.push_back(name);
  }
  for (const std::string& name : unfilled) pass_on(name);
}

void Owner::send_stat(PeerId id) {
  const owner_wire::Answer head{.num_records = static_cast<std::uint32_t>(regions_.size())};
  std::vector<std::byte> message(sizeof(head) + regions_.size() * sizeof(owner_wire::RegionRecord));
  std::memcpy(message.data(), &head, sizeof(head));
  std::byte* out = message.data() + sizeof(head);
  for (const auto& [name, region] : regions_) {
    owner_wire::RegionRecord record{.bytes = region.bytes, .state = static_cast<std::uint32_t>(region.state)};
    if (const auto filler = peers_.find(region.filler); filler != peers_.end()) record.filler_pid = filler->second.pid;
    owner_wire::set_field(record.name, name);
    std::memcpy(out, &record, sizeof(record));
    out += sizeof(record);
  }
  send_to(id, message, -1);
}

void Owner::answer(PeerId id, const absl::Status& status, Role role, int fd) {
  owner_wire::Answer reply{.code = static_cast<std::int32_t>(status.code()), .role = role};
  owner_wire::set_field(reply.text, message(status));
  if (!status.ok()) report(fmt::format("peer {}: {}", id, message(status)));
  send_to(id, std::as_bytes(std::span(&reply, 1)), fd);
}

void Owner::send_to(PeerId id, std::span<const std::byte> message, int fd) {
  if (!owner_wire::send_message(peers_[id].socket, message, fd).ok()) doomed_.push_back(id);  // gone, or not reading
}

}  // namespace

absl::StatusOr<FileDescriptor> bind_owner_socket(const std::string& address) {
  TANDEM_ASSIGN(const owner_wire::Address where, owner_wire::parse_address(address));
  const auto* raw = reinterpret_cast<const sockaddr*>(&where.socket);
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return errno_status("open the owner's socket");
  if (::bind(socket.get(), raw, where.length) != 0) {
    if (errno != EADDRINUSE) return errno_status(fmt::format("bind the owner's socket to {}", address));
    const FileDescriptor probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const bool dead = address.front() != '@' && ::connect(probe.get(), raw, where.length) != 0 && errno == ECONNREFUSED;
    if (!dead) {
      return absl::AlreadyExistsError(
          fmt::format("an owner listens at {} already; attach to it or choose another address", address));
    }
    // The file of an owner that was killed.
    if (::unlink(address.c_str()) != 0) return errno_status(fmt::format("remove the stale socket {}", address));
    if (::bind(socket.get(), raw, where.length) != 0) {
      return errno_status(fmt::format("bind the owner's socket to {}", address));
    }
  }
  if (::listen(socket.get(), static_cast<int>(kMaxOwnerPeers)) != 0) {
    return errno_status(fmt::format("listen on the owner's socket {}", address));
  }
  return socket;
}

absl::Status run_owner(OwnerOptions options, MemorySource& source) {
  std::string path;  // a file of ours, to be removed
  if (!options.listener.valid()) {
    TANDEM_ASSIGN(options.listener, bind_owner_socket(options.address));
    if (options.address.front() != '@') path = options.address;
    if (options.report) options.report(fmt::format("listens at {}", options.address));
  }
  FileDescriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return errno_status("create the owner's event queue");
  absl::Status status;
  {
    Owner owner(std::move(options), source, std::move(epoll));
    status = owner.start();
    if (status.ok()) status = owner.run();
    if (!path.empty()) ::unlink(path.c_str());  // while it still listens, so that it cannot be a successor's
  }
  return status;
}

}  // namespace tandem
