#include "process/child_process.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "base/status.h"
#include "fmt/core.h"

namespace tandem {

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), pidfd_(std::move(other.pidfd_)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    end();
    pid_ = std::exchange(other.pid_, 0);
    pidfd_ = std::move(other.pidfd_);
  }
  return *this;
}

ChildProcess::~ChildProcess() { end(); }

void ChildProcess::end() {
  if (pid_ <= 0) return;
  signal(SIGKILL);
  wait(-1);
}

absl::StatusOr<ChildProcess> ChildProcess::spawn(const std::vector<std::string>& arguments) {
  std::string name = "tandem";
  std::vector<std::string> copies = arguments;
  std::vector<char*> argv{name.data()};
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);

  // A child starts with no signal blocked, whatever the spawning thread has blocked.
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  // Nor with any descriptor but the standard three: a worker started late would keep the clients' connections and the
  // listening sockets open, which libraries make without close-on-exec.
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    const bool scarce = error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE;
    const std::string what = fmt::format("start tandem {}: {}", copies.front(), ::strerror(error));
    return scarce ? absl::ResourceExhaustedError(what + "; a limit of processes, memory or descriptors is reached")
                  : absl::InternalError(what);
  }

  ChildProcess child;
  child.pid_ = pid;
  child.pidfd_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!child.pidfd_.valid()) return errno_status("watch a child process");
  return child;
}

bool ChildProcess::ended() const {
  pollfd ready{pidfd_.get(), POLLIN, 0};
  return pid_ > 0 && ::poll(&ready, 1, 0) > 0;
}

void ChildProcess::signal(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

std::optional<ProcessEnd> ChildProcess::wait(int timeout_ms) {
  if (pid_ <= 0) return ProcessEnd{};
  if (pidfd_.valid()) {
    pollfd ready{pidfd_.get(), POLLIN, 0};
    if (::poll(&ready, 1, timeout_ms) == 0) return std::nullopt;
  }
  int status = 0;
  const pid_t reaped = ::waitpid(pid_, &status, timeout_ms < 0 ? 0 : WNOHANG);
  if (reaped == 0) return std::nullopt;
  pid_ = 0;
  pidfd_ = FileDescriptor();
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    return ProcessEnd{ProcessEnd::Cause::kSignal, fmt::format("signal {} ({})", number, ::strsignal(number))};
  }
  return ProcessEnd{ProcessEnd::Cause::kExit, fmt::format("exit code {}", WEXITSTATUS(status))};
}

}  // namespace tandem
