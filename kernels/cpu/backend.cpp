#include "kernels/cpu/backend.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/team.h"

namespace tandem::cpu {
namespace {

constexpr int kMaxThreads = 1024;

// Its ops run at once on the caller and its team, so an op that has returned is done.
class CpuStream final : public Stream {
 public:
  explicit CpuStream(std::unique_ptr<Team> team) : team_(std::move(team)) {}
  absl::Status set_share(Share share) override { return team_->set_share(share); }
  absl::Status synchronize() override { return absl::OkStatus(); }
  Team& team() { return *team_; }

 private:
  std::unique_ptr<Team> team_;
};

Team& team_of(Stream& stream) { return static_cast<CpuStream&>(stream).team(); }

class CpuBackend final : public Backend {
 public:
  CpuBackend(Isa isa, std::vector<int> cpus, int num_units) : ops_(ops_for(isa)), cpus_(std::move(cpus)) {
    info_.name = "cpu";
    info_.kernels = cpu::name(isa);
    info_.description = fmt::format("{} kernels, {} threads on {} cores", cpu::name(isa), num_units, cpus_.size());
    info_.num_units = num_units;
  }

  const BackendInfo& info() const override { return info_; }
  MemorySource& memory() override { return memory_; }
  absl::StatusOr<std::unique_ptr<Stream>> open_stream(Share share) override;
  absl::StatusOr<Buffer> allocate(std::size_t bytes) override;

  absl::StatusOr<std::size_t> packed_bytes(const WeightSource& source) const override {
    return cpu::packed_bytes(source);
  }
  void pack_weight(const WeightSource& source, std::byte* destination, Stream& stream) override {
    const std::int64_t tiles = num_tiles(source.rows);
    team_of(stream).run([&](int worker, int num_workers) {
      pack_tiles(source, destination, tiles * worker / num_workers, tiles * (worker + 1) / num_workers);
    });
  }

  void copy(Stream& /*stream*/, std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes != 0) std::memmove(to, from, bytes);
  }
  void signal(Stream& /*stream*/, std::atomic<std::uint64_t>& counter, std::uint64_t value) override {
    counter.store(value, std::memory_order_release);
  }
  void wait(Stream& stream, const std::atomic<std::uint64_t>& counter, std::uint64_t value) override;
  void launch(Stream& /*stream*/, std::uint64_t /*key*/, const std::function<void()>& body) override { body(); }

  void embed(const EmbedArgs& args, Stream& stream) override { ops_.embed(args, team_of(stream)); }
  void rms_norm(const RmsNormArgs& args, Stream& stream) override { ops_.rms_norm(args, team_of(stream)); }
  void linear(const LinearArgs& args, Stream& stream) override { ops_.linear(args, team_of(stream)); }
  void rope_angles(const RopeAnglesArgs& args, Stream& stream) override { ops_.rope_angles(args, team_of(stream)); }
  void rope(const RopeArgs& args, Stream& stream) override { ops_.rope(args, team_of(stream)); }
  void kv_write(const KvWriteArgs& args, Stream& stream) override { ops_.kv_write(args, team_of(stream)); }
  void attention(const AttentionArgs& args, Stream& stream) override { ops_.attention(args, team_of(stream)); }
  void gate(const GateArgs& args, Stream& stream) override { ops_.gate(args, team_of(stream)); }
  void gather_rows(const GatherRowsArgs& args, Stream& stream) override { ops_.gather_rows(args, team_of(stream)); }
  void sample(const SampleArgs& args, Stream& stream) override { ops_.sample(args, team_of(stream)); }

 private:
  const Ops& ops_;
  const std::vector<int> cpus_;
  BackendInfo info_;
  MemfdSource memory_;
};

absl::StatusOr<std::unique_ptr<Stream>> CpuBackend::open_stream(Share share) {
  if (share.count == 0) share = Share{0, static_cast<std::uint16_t>(info_.num_units)};
  if (share.first + share.count > info_.num_units) {
    return absl::InvalidArgumentError(
        fmt::format("open a stream on units [{}, {}): the CPU backend has {}; ask for "
                    "fewer or raise its thread count",
                    share.first, share.first + share.count, info_.num_units));
  }
  TANDEM_ASSIGN(std::unique_ptr<Team> team, Team::create(share, cpus_));
  return std::make_unique<CpuStream>(std::move(team));
}

// Pages of a memory file: zero, taken when first touched, and refused at once when no address space would hold them.
absl::StatusOr<Backend::Buffer> CpuBackend::allocate(std::size_t bytes) {
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  absl::StatusOr<FileDescriptor> file = create_memfd("activations", size);
  absl::StatusOr<Mapping> mapping = file.ok() ? Mapping::map(*file, size, Access::kReadWrite) : file.status();
  if (!mapping.ok()) {
    return annotate(mapping.status(),
                    fmt::format("{} bytes for activations; lower the batch or context limits", bytes));
  }
  // Shared only because std::function copies its target; the buffer's deleter is the one owner.
  auto owner = std::make_shared<Mapping>(*std::move(mapping));
  std::byte* data = owner->data();
  return Buffer(data, [owner = std::move(owner)](std::byte*) mutable { owner.reset(); });
}

void CpuBackend::wait(Stream& /*stream*/, const std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  constexpr int kPauses = 1000;  // some 20-50 us, then let others run: the awaited work may need this core
  for (int i = 0; counter.load(std::memory_order_acquire) < value; ++i) {
    if (i < kPauses) {
      _mm_pause();
    } else {
      std::this_thread::yield();
    }
  }
}

absl::StatusOr<Isa> choose_isa(const std::string& wanted) {
  const std::optional<Isa> best = best_isa();
  if (!best.has_value()) {
    return absl::FailedPreconditionError("this processor lacks AVX2, FMA or F16C, which the CPU kernels need");
  }
  if (wanted.empty()) return *best;
  for (const Isa isa : kAllIsas) {
    if (wanted != name(isa)) continue;
    if (supports(isa)) return isa;
    return absl::FailedPreconditionError(
        fmt::format("kernels \"{}\" were asked for, but this processor only runs \"{}\"", wanted, name(*best)));
  }
  return absl::InvalidArgumentError(
      fmt::format("unknown CPU instruction set \"{}\"; use {} or leave it empty", wanted, words_of(kIsaWords, ", ")));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> create_cpu_backend(const CpuOptions& options) {
  TANDEM_ASSIGN(const Isa isa, choose_isa(options.isa));
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        fmt::format("{} CPU threads: use 0 (all cores) to {}", options.threads, kMaxThreads));
  }
  std::vector<int> cpus = allowed_cpus();
  int num_units = options.threads;
  if (num_units == 0) num_units = cpus.empty() ? 1 : static_cast<int>(cpus.size());
  return std::make_unique<CpuBackend>(isa, std::move(cpus), num_units);
}

}  // namespace tandem::cpu
