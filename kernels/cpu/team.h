// A stream's threads: one is the caller, the others wait between runs by spinning, then sleeping on a futex.
// Each is pinned to the core of its unit where the system allows that. Owned and used by one lane's thread.
// A run's parts belong to threads, but the caller takes over those that nobody has begun when its own is done: a
// thread that sleeps, or whose core another process has, delays nobody.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "tandem/types.h"

namespace tandem::cpu {

// The cores the calling thread may run on. Ask before it is pinned: unit i of a share is the i-th of them.
std::vector<int> allowed_cpus();

class Team final {
  struct State;

 public:
  // Threads for every unit of `share` (count 0: of `cpus`); pins the calling thread to its first until the team
  // ends. `cpus` are the cores that units count in; empty: allowed_cpus(). A unit past them gets no thread; the
  // others do its parts.
  static absl::StatusOr<std::unique_ptr<Team>> create(Share share, std::span<const int> cpus = {});
  explicit Team(std::unique_ptr<State> state);  // for create() only
  ~Team();

  // From the next run on, only the units of `share` work (count 0: all), the caller on the first of them. It must
  // lie within the share given to create().
  absl::Status set_share(Share share);

  // Calls body(worker, num_workers) once for each active unit and returns when all are done; worker 0's call is the
  // caller's, another's may be. num_workers is at least 1; nothing is allocated. `body` must not throw, call run() or
  // wait for another worker.
  template <class Body>
  void run(const Body& body) {
    run_erased([](const void* context, int worker,
                  int num_workers) { (*static_cast<const Body*>(context))(worker, num_workers); },
               &body);
  }

  int active() const;

  // Memory that lives until the stream closes: one area per worker, and one for all of them. They grow to the
  // largest size asked for (64-byte aligned; growing drops what was there) and allocate nothing after that.
  // Call only outside run().
  std::byte* worker_scratch(int worker, std::size_t bytes);
  std::byte* shared_scratch(std::size_t bytes);

 private:
  using Erased = void (*)(const void* context, int worker, int num_workers);
  void run_erased(Erased body, const void* context);

  std::unique_ptr<State> state_;
};

}  // namespace tandem::cpu
