// `tandem owner` and `tandem worker`: the processes that `tandem serve` starts.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"
#include "cli/commands.h"
#include "fmt/core.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/memory.h"
#include "memory/owner.h"
#include "worker/worker.h"

namespace tandem {
namespace {

bool parent_lives(int parent_pid) { return parent_pid == 0 || ::getppid() == parent_pid; }

// The kernel ends this process with its parent, even when the parent is killed. False when that has happened already.
bool die_with_parent(int parent_pid) {
  if (parent_pid == 0) return true;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  return parent_lives(parent_pid);
}

// A terminal's Ctrl-C and a service manager's SIGTERM reach the whole group; the front end alone decides what they mean
// and ends its children when it has drained. A process of its own takes them as usual.
void ignore_group_signals(int parent_pid) {
  ::signal(SIGPIPE, SIG_IGN);
  if (parent_pid == 0) return;
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGTERM, SIG_IGN);
}

int report(const absl::Status& status, const char* what) {
  if (status.ok()) return 0;
  TANDEM_LOG(kError, "{}: {}", what, message(status));
  return 1;
}

}  // namespace

int owner_command(const OwnerCommandOptions& options) {
  init_logging(options.log_level, options.log_format, "owner");
  ignore_group_signals(options.parent_pid);
  if (!die_with_parent(options.parent_pid)) return 1;
  FileDescriptor stop;
  if (options.parent_pid == 0) {
    sigset_t terminate;
    ::sigemptyset(&terminate);
    ::sigaddset(&terminate, SIGTERM);
    ::sigaddset(&terminate, SIGINT);
    ::sigprocmask(SIG_BLOCK, &terminate, nullptr);
    stop = FileDescriptor(::signalfd(-1, &terminate, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  cpu::MemfdSource source;
  OwnerOptions owner;
  owner.address = options.socket;
  owner.stop_fd = stop.get();
  owner.keep_running = [&options] { return parent_lives(options.parent_pid); };
  // Who runs an owner by itself wants to see who comes.
  const LogLevel level = options.parent_pid == 0 ? LogLevel::kInfo : LogLevel::kDebug;
  owner.report = [level](std::string_view line) { log(level, line); };
  return report(run_owner(std::move(owner), source), "owner");
}

int worker_command(const WorkerCommandOptions& options) {
  const char* const roles[] = {"prefill", "decode"};
  init_logging(options.log_level, options.log_format, options.lane < 2 ? roles[options.lane] : "worker");
  ignore_group_signals(options.parent_pid);
  if (!die_with_parent(options.parent_pid)) return 1;
  auto backend = cpu::create_cpu_backend({options.isa, static_cast<int>(options.threads)});
  if (!backend.ok()) return report(backend.status(), "worker");
  WorkerOptions worker;
  worker.owner_address = options.owner_socket;
  worker.model = options.model;
  worker.lane = LaneId{options.lane};
  worker.epoch = options.epoch;
  worker.kv_dtype = options.kv_dtype;
  worker.block_tokens = options.block_tokens;
  worker.num_blocks = options.num_blocks;
  worker.max_rows = options.max_rows;
  return report(run_worker(worker, **backend, [&options] { return parent_lives(options.parent_pid); }), "worker");
}

}  // namespace tandem
