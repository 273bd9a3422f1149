// What the team does when the system takes a thread's core away between any two instructions of its way to sleep. A
// child process runs the team; this process holds one of its threads by ptrace after 0, 1, 2, ... instructions, lets
// the others go on, and then asks whether everybody still works. So a lost wake-up shows every time, on any number of
// cores and however loaded they are; team_test.cpp looks for it by chance.
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <new>
#include <thread>
#include <vector>

#include "fmt/core.h"
#include "gtest/gtest.h"
#include "kernels/cpu/team.h"

namespace tandem::cpu {
namespace {

constexpr int kMaxUnits = 3;
// Generous: a test that passes never waits for it.
constexpr std::chrono::seconds kLimit{20};
// More instructions than a helper's way from its part to its sleep takes, spinning included.
constexpr int kMaxSteps = 20'000;
constexpr std::chrono::microseconds kPastSpin{60};
// The last ones of that way, from before the helper says that it is asleep.
constexpr int kSleepInstructions = 64;
// A helper that has ended its part is through with waking the caller before so many.
constexpr int kWakeInstructions = 64;

// Memory of both processes.
struct Shared {
  std::atomic<int> wanted{0};                       // runs the child has been asked for
  std::atomic<int> done{0};                         // runs that have returned
  std::array<std::atomic<pid_t>, kMaxUnits> threads{};  // of each worker, once it has worked
  std::array<std::atomic<bool>, kMaxUnits> gate{};  // that worker stays in its part; worker 0 lets it begin first
  std::array<std::atomic<int>, kMaxUnits> inside{};  // the last run whose part that worker began in its own thread
};

// Leaves the core to the others. Not a futex, so that it passes for no sleep of the team's.
void give_way() {
  constexpr timespec kShort{0, 20'000};
  ::nanosleep(&kShort, nullptr);
}

template <class Done>
bool eventually(const Done& done) {
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    give_way();
  }
  return true;
}

[[noreturn]] void run_child(Shared& shared, std::uint16_t units) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_TIMERSLACK, 1);
  const std::vector<int> allowed = allowed_cpus();
  std::vector<int> cpus;
  for (std::size_t unit = 0; unit < units; ++unit) cpus.push_back(allowed[unit % allowed.size()]);
  const auto team = *Team::create({0, units}, cpus);
  const pid_t caller = ::gettid();
  while (true) {
    while (shared.wanted == shared.done) give_way();
    const int run = shared.done + 1;
    team->run([&](int worker, int num_workers) {
      if (worker != 0 && ::gettid() == caller) return;  // taken over
      const auto self = static_cast<std::size_t>(worker);
      shared.threads[self] = ::gettid();
      shared.inside[self] = run;
      while (shared.gate[self]) give_way();
      for (std::size_t other = 1; worker == 0 && other < static_cast<std::size_t>(num_workers); ++other) {
        while (shared.gate[other] && shared.inside[other] != run) give_way();
      }
    });
    shared.done = run;
  }
}

// One thread of the child; every call but resume() and is_asleep() needs it held.
class Thread final {
 public:
  explicit Thread(pid_t id) : id_(id) {}
  pid_t id() const { return id_; }
  bool seize() const { return ::ptrace(PTRACE_SEIZE, id_, 0, 0) == 0; }
  void hold() const {
    ASSERT_EQ(::ptrace(PTRACE_INTERRUPT, id_, 0, 0), 0);
    await_stop();
  }
  void step() const {
    ASSERT_EQ(::ptrace(PTRACE_SINGLESTEP, id_, 0, 0), 0);
    await_stop();
  }
  void run_to_syscall() const {
    ASSERT_EQ(::ptrace(PTRACE_SYSCALL, id_, 0, 0), 0);
    await_stop();
  }
  void resume() const { ASSERT_EQ(::ptrace(PTRACE_CONT, id_, 0, 0), 0); }
  // Its next instruction is the call that sleeps on a futex.
  bool is_about_to_sleep() const {
    const user_regs_struct registers = read_registers();
    return is_wait(registers.rax, registers.rsi) && is_at_syscall(registers);
  }
  // Its next instruction is the call of give_way().
  bool is_about_to_give_way() const {
    const user_regs_struct registers = read_registers();
    return (registers.rax == SYS_clock_nanosleep || registers.rax == SYS_nanosleep) && is_at_syscall(registers);
  }
  // It was stopped as it entered the call that sleeps.
  bool is_entering_sleep() const {
    const user_regs_struct registers = read_registers();
    return is_wait(registers.orig_rax, registers.rsi);
  }
  // It sleeps in the kernel on a futex.
  bool is_asleep() const {
    std::ifstream file(fmt::format("/proc/{}/syscall", id_));
    long number = -1;
    return file >> number && number == SYS_futex;
  }

 private:
  static bool is_wait(std::uint64_t number, std::uint64_t operation) {
    return number == SYS_futex && (operation & FUTEX_CMD_MASK) == FUTEX_WAIT;
  }
  bool is_at_syscall(const user_regs_struct& registers) const {
    constexpr std::uint64_t kSyscall = 0x050F;
    return (static_cast<std::uint64_t>(::ptrace(PTRACE_PEEKTEXT, id_, registers.rip, 0)) & 0xFFFF) == kSyscall;
  }
  user_regs_struct read_registers() const {
    user_regs_struct registers = {};
    EXPECT_EQ(::ptrace(PTRACE_GETREGS, id_, 0, &registers), 0);
    return registers;
  }
  void await_stop() const {
    int status = 0;
    ASSERT_EQ(::waitpid(id_, &status, __WALL), id_);
    ASSERT_TRUE(WIFSTOPPED(status)) << "the child has ended, wait status " << status;
  }

  pid_t id_;
};

class TeamPreemption : public testing::Test {
 protected:
  // Starts the child, lets each of its threads work once, and seizes them.
  void start(std::uint16_t units) {
    void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    shared_ = new (memory) Shared;
    child_ = ::fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) run_child(*shared_, units);
    for (std::size_t w = 1; w < units; ++w) shared_->gate[w] = true;
    ++shared_->wanted;
    for (std::size_t w = 0; w < units; ++w) {
      ASSERT_TRUE(eventually([&] { return shared_->inside[w] == 1; })) << "worker " << w << " has not begun";
      shared_->gate[w] = false;
      threads_.emplace_back(shared_->threads[w]);
      if (!threads_.back().seize()) GTEST_SKIP() << "this system lets no process trace its child";
    }
    ASSERT_TRUE(await_runs());
  }

  void TearDown() override {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      for (std::size_t w = 1; w < threads_.size(); ++w) ::waitpid(threads_[w].id(), nullptr, __WALL);
      ::waitpid(child_, nullptr, __WALL);
    }
    if (shared_ != nullptr) ::munmap(shared_, sizeof(Shared));
  }

  Shared& shared() { return *shared_; }
  const Thread& caller() const { return threads_[0]; }
  const Thread& helper(std::size_t worker) const { return threads_[worker]; }
  bool await_runs() {
    return eventually([&] { return shared_->done == shared_->wanted; });
  }
  // Runs the child's caller until all runs have returned, or it sleeps because of a thread that is held.
  bool await_runs_or_sleep() {
    EXPECT_TRUE(eventually([&] { return shared_->done == shared_->wanted || caller().is_asleep(); }));
    return shared_->done == shared_->wanted;
  }
  // A run in which `worker` stays in its part.
  void begin_gated_run(std::size_t worker) {
    shared_->gate[worker] = true;
    ++shared_->wanted;
    ASSERT_TRUE(eventually([&] { return shared_->inside[worker] == shared_->wanted; }))
        << "helper " << worker << " sleeps for good: its part is posted and it does not begin";
  }
  // Begins a run in which the caller stays in its part, so that it does not sleep, and the helper goes `steps`
  // instructions from its own part on, or to the one that sleeps; returns how many that were. They are counted from one
  // place, so that equal counts end at equal places.
  int hold_after(std::size_t worker, int steps) {
    shared_->gate[0] = true;
    begin_gated_run(worker);
    if (HasFatalFailure()) return 0;
    helper(worker).hold();
    while (!helper(worker).is_about_to_give_way() && !HasFatalFailure()) helper(worker).step();
    shared_->gate[worker] = false;
    int gone = 0;
    for (; gone < steps && !helper(worker).is_about_to_sleep() && !HasFatalFailure(); ++gone) {
      helper(worker).step();
      if (gone % 16 == 0) std::this_thread::sleep_for(kPastSpin);  // one round of its spin is enough, every time
    }
    shared_->gate[0] = false;
    return gone;
  }

 private:
  Shared* shared_ = nullptr;
  pid_t child_ = -1;
  std::vector<Thread> threads_;
};

#if defined(__SANITIZE_THREAD__)
#define SKIP_UNDER_TSAN() GTEST_SKIP() << "an atomic access is hundreds of instructions here"
#else
#define SKIP_UNDER_TSAN() static_cast<void>(0)
#endif

// The caller posts a part to a helper that is held, and takes the part over.
TEST_F(TeamPreemption, a_helper_held_anywhere_on_its_way_to_sleep_works_again) {
  SKIP_UNDER_TSAN();
  start(2);
  if (IsSkipped() || HasFatalFailure()) return;
  const auto run_while_held = [&](int steps, int& gone) {
    gone = hold_after(1, steps);
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_TRUE(await_runs());
    ++shared().wanted;
    ASSERT_TRUE(await_runs()) << "the caller waits for a helper that has not begun";
    helper(1).resume();
    ASSERT_TRUE(eventually([&] { return helper(1).is_asleep(); }));  // what comes sooner would wake it by chance
  };
  int length = 0;  // of the way; calls of the clock make some instructions' difference
  ASSERT_NO_FATAL_FAILURE(run_while_held(kMaxSteps, length));
  ASSERT_LT(length, kMaxSteps) << "no way to sleep was seen";
  for (int steps = std::max(0, length - kSleepInstructions); steps < length + kSleepInstructions / 2; ++steps) {
    SCOPED_TRACE(fmt::format("helper held after {} of some {} instructions", steps, length));
    int gone = 0;
    ASSERT_NO_FATAL_FAILURE(run_while_held(steps, gone));
  }
  ++shared().wanted;
  EXPECT_TRUE(await_runs());
}

// The last helper of a run is held before it wakes the caller, and goes on when the caller of the next run is about to
// sleep.
TEST_F(TeamPreemption, a_caller_wakes_though_a_helper_wakes_it_late_for_the_run_before) {
  SKIP_UNDER_TSAN();
  start(3);
  if (IsSkipped() || HasFatalFailure()) return;
  int runs_while_held = 0;
  for (int steps = 0; runs_while_held < kWakeInstructions; ++steps) {
    ASSERT_LT(steps, kMaxSteps);
    SCOPED_TRACE(fmt::format("helper held after {} instructions", steps));
    ASSERT_EQ(hold_after(1, steps), steps) << "the helper sleeps before it has woken the caller";
    if (await_runs_or_sleep()) {  // else its part is not over
      ++runs_while_held;
      shared().gate[0] = true;
      ASSERT_NO_FATAL_FAILURE(begin_gated_run(2));
      ASSERT_TRUE(eventually([&] { return shared().inside[0] == shared().wanted; }));
      caller().hold();
      shared().gate[0] = false;
      // Past the calls of worker 0's part to the one that sleeps.
      do {
        ASSERT_NO_FATAL_FAILURE(caller().run_to_syscall());
      } while (!caller().is_entering_sleep());
      helper(1).resume();
      ASSERT_TRUE(eventually([&] { return helper(1).is_asleep(); }));
      caller().resume();
      ASSERT_TRUE(eventually([&] { return caller().is_asleep(); }));
      shared().gate[2] = false;
    } else {
      helper(1).resume();
    }
    ASSERT_TRUE(await_runs()) << "the caller sleeps for good: the last helper did not wake it";
  }
}

}  // namespace
}  // namespace tandem::cpu
