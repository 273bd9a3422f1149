#include "bench/engine_bench.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "base/system_memory.h"
#include "fmt/core.h"
#include "ipc/channel.h"
#include "ipc/control_page.h"
#include "kernels/cpu/backend.h"
#include "memory/kv_pool.h"
#include "model/decoder.h"
#include "model/weights.h"
#include "worker/lane.h"

namespace tandem::bench {
namespace {

constexpr std::chrono::minutes kStepTimeout{5};

// A region of device memory, mapped.
absl::StatusOr<Mapping> make_region(Backend& backend, const char* name, std::size_t bytes) {
  TANDEM_ASSIGN(const FileDescriptor file, backend.memory().allocate(name, bytes));
  return backend.memory().map(file, bytes, Access::kReadWrite);
}

// The most blocks that one test holds.
std::uint32_t blocks_needed(const EngineBenchOptions& options, std::uint32_t block_tokens) {
  const auto blocks = [block_tokens](std::uint32_t tokens) { return (tokens + block_tokens - 1) / block_tokens; };
  std::uint32_t most = 4;
  for (const std::uint32_t prompt : options.prompts) most = std::max(most, blocks(prompt));
  if (options.decode_tokens == 0) return most;
  for (const std::uint32_t depth : options.depths) {
    for (const std::uint32_t count : options.sequences) {
      most = std::max(most, count * blocks(std::max(depth, 1U) + options.decode_tokens));
    }
  }
  return most;
}

// One lane in a thread of its own, over the memory it needs. The caller plays the scheduler.
class Rig final {
 public:
  static absl::StatusOr<std::unique_ptr<Rig>> create(const ModelFile& model, const EngineBenchOptions& options,
                                                     int threads);
  ~Rig();

  int threads() const { return backend_->info().num_units; }
  const std::string& description() const { return backend_->info().description; }
  // Seconds to read `tokens` from an empty sequence and to draw the next one.
  absl::StatusOr<double> prefill(std::uint32_t num_tokens);
  // Seconds to decode with `count` sequences of `depth` tokens each.
  absl::StatusOr<double> decode(std::uint32_t depth, std::uint32_t count);

 private:
  Rig(const ModelSpec& spec, const EngineBenchOptions& options)
      : spec_(spec), options_(options), kv_layout_(kv_layout(spec, options.kv_dtype, 16)) {}
  absl::Status start(const ModelFile& model, int threads);
  // The lane's thread: `ready` is told once, when it can take plans or cannot.
  void run_lane(DecoderWeights weights, std::int32_t max_rows, std::promise<absl::Status>& ready);
  absl::Status fill_weights(const ModelFile& model, DecoderWeights& weights);

  absl::StatusOr<KvLease> reserve(std::uint64_t sequence, std::uint32_t tokens);
  void add_item(std::uint64_t sequence, std::uint32_t position, std::span<const TokenId> tokens, const KvLease& lease,
                bool wants_sample);
  absl::Status run_plan();
  absl::Status read_prompt(std::uint32_t num_tokens, const KvLease& lease);
  void copy_blocks(const KvLease& from, const KvLease& to, std::uint32_t tokens);
  std::uint32_t num_blocks_for(std::uint32_t tokens) const {
    const auto block_tokens = static_cast<std::uint32_t>(kv_layout_.block_tokens);
    return (tokens + block_tokens - 1) / block_tokens;
  }

  const ModelSpec spec_;
  const EngineBenchOptions& options_;
  const KvLayout kv_layout_;
  std::unique_ptr<Backend> backend_;
  std::uint32_t num_blocks_ = 0;
  Mapping weights_memory_, kv_memory_, control_memory_, ledger_memory_, channel_memory_;
  ControlPage* control_ = nullptr;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<LanePort> port_;
  std::thread lane_;
  Plan plan_;
  Result result_;
  std::uint64_t step_ = 0;
};

absl::StatusOr<std::unique_ptr<Rig>> Rig::create(const ModelFile& model, const EngineBenchOptions& options,
                                                 int threads) {
  std::unique_ptr<Rig> rig(new Rig(model.spec(), options));
  TANDEM_TRY(rig->start(model, threads));
  return rig;
}

Rig::~Rig() {
  if (!lane_.joinable()) return;
  mark_closed(channel_memory_.bytes()).IgnoreError();
  lane_.join();
}

absl::Status Rig::start(const ModelFile& model, int threads) {
  TANDEM_ASSIGN(backend_, cpu::create_cpu_backend({options_.isa, threads}));
  num_blocks_ = blocks_needed(options_, static_cast<std::uint32_t>(kv_layout_.block_tokens));
  const std::size_t kv_bytes = static_cast<std::size_t>(kv_layout_.block_bytes()) * num_blocks_;
  if (kv_bytes > available_memory_bytes()) {
    return absl::ResourceExhaustedError(
        fmt::format("the tests need {:.1f} GiB of keys and values; ask for fewer sequences or less depth",
                    static_cast<double>(kv_bytes) / (1U << 30U)));
  }
  DecoderWeights weights;
  TANDEM_TRY(fill_weights(model, weights));
  TANDEM_ASSIGN(kv_memory_, make_region(*backend_, "kv", kv_bytes));
  TANDEM_ASSIGN(control_memory_, make_region(*backend_, "control", sizeof(ControlPage)));
  TANDEM_ASSIGN(ledger_memory_, make_region(*backend_, "ledger", Ledger::bytes(num_blocks_)));
  TANDEM_ASSIGN(channel_memory_, make_region(*backend_, "channel", channel_bytes()));
  TANDEM_ASSIGN(control_, init_control_page(control_memory_.bytes()));
  TANDEM_TRY(Ledger::init(ledger_memory_.bytes(), num_blocks_));
  TANDEM_ASSIGN(pool_, KvPool::create(ledger_memory_.bytes(), {kSchedulerHolder, 0}));
  TANDEM_TRY(init_channel(channel_memory_.bytes()));
  TANDEM_ASSIGN(port_, make_lane_port(channel_memory_.bytes()));

  std::uint32_t max_rows = options_.chunk_tokens;
  for (const std::uint32_t count : options_.sequences) max_rows = std::max(max_rows, count);
  std::promise<absl::Status> ready;
  std::future<absl::Status> is_ready = ready.get_future();
  lane_ =
      std::thread([this, weights, max_rows, &ready] { run_lane(weights, static_cast<std::int32_t>(max_rows), ready); });
  return is_ready.get();
}

absl::Status Rig::fill_weights(const ModelFile& model, DecoderWeights& weights) {
  TANDEM_ASSIGN(const WeightsLayout layout, WeightsLayout::create(model, *backend_));
  TANDEM_ASSIGN(weights_memory_, make_region(*backend_, "weights", layout.bytes()));
  TANDEM_ASSIGN(const auto stream, backend_->open_stream(Share{}));
  layout.fill(weights_memory_.bytes(), *backend_, *stream, [](std::size_t, std::size_t) {});
  TANDEM_TRY(stream->synchronize());
  TANDEM_ASSIGN(weights, layout.bind(weights_memory_.bytes()));
  return absl::OkStatus();
}

void Rig::run_lane(DecoderWeights weights, std::int32_t max_rows, std::promise<absl::Status>& ready) {
  const auto stream = backend_->open_stream(Share{});
  auto decoder = Decoder::create(spec_, std::move(weights), *backend_, {max_rows, std::min(max_rows, 64)});
  auto port = make_worker_port(channel_memory_.bytes(), control_->scheduler);
  for (const absl::Status& status : {stream.status(), decoder.status(), port.status()}) {
    if (!status.ok()) return ready.set_value(status);
  }
  Lane lane(**decoder, *backend_, **stream, {kv_memory_.data(), kv_layout_}, num_blocks_, control_->lanes[0]);
  ready.set_value(absl::OkStatus());
  lane.run(**port, [] { return true; }).IgnoreError();  // ends when the channel is closed
}

absl::StatusOr<KvLease> Rig::reserve(std::uint64_t sequence, std::uint32_t tokens) {
  return pool_->reserve(SequenceId{sequence}, num_blocks_for(tokens), Phase::kDecode);
}

void Rig::add_item(std::uint64_t sequence, std::uint32_t position, std::span<const TokenId> tokens,
                   const KvLease& lease, bool wants_sample) {
  PlanItem item;
  item.sequence = SequenceId{sequence};
  item.position = position;
  const auto run = [](std::size_t begin, std::size_t count) {
    return Run{static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(count)};
  };
  const std::size_t num_blocks = num_blocks_for(position + static_cast<std::uint32_t>(tokens.size()));
  item.tokens = run(plan_.tokens.size(), tokens.size());
  item.blocks = run(plan_.blocks.size(), num_blocks);
  item.wants_sample = wants_sample ? 1 : 0;
  plan_.tokens.insert(plan_.tokens.end(), tokens.begin(), tokens.end());
  plan_.blocks.insert(plan_.blocks.end(), lease.blocks().begin(),
                      lease.blocks().begin() + static_cast<std::ptrdiff_t>(num_blocks));
  plan_.items.push_back(item);
}

// Sends the plan and waits for its result, as the scheduler does: asleep on its doorbell.
absl::Status Rig::run_plan() {
  plan_.step = ++step_;
  control_->lanes[0].issued_step.store(plan_.step, std::memory_order_seq_cst);
  TANDEM_TRY(port_->send(plan_));
  plan_.clear();
  const std::int64_t deadline_us = steady_now_us() + std::chrono::microseconds(kStepTimeout).count();
  while (true) {
    const std::uint32_t seen = control_->scheduler.seen();
    TANDEM_ASSIGN(const bool answered, port_->poll(result_));
    if (answered) return result_.error.empty() ? absl::OkStatus() : absl::InternalError(result_.error);
    if (steady_now_us() > deadline_us) return absl::DeadlineExceededError("the lane did not answer");
    control_->scheduler.wait(seen, kStepTimeout);
  }
}

absl::Status Rig::read_prompt(std::uint32_t num_tokens, const KvLease& lease) {
  std::mt19937 random(num_tokens);
  std::vector<TokenId> prompt(num_tokens);
  for (TokenId& token : prompt) token = static_cast<TokenId>(random() % static_cast<std::uint32_t>(spec_.vocab_size));
  for (std::uint32_t done = 0; done < num_tokens;) {
    const std::uint32_t count = std::min(options_.chunk_tokens, num_tokens - done);
    add_item(0, done, std::span(prompt).subspan(done, count), lease, done + count == num_tokens);
    TANDEM_TRY(run_plan());
    done += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<double> Rig::prefill(std::uint32_t num_tokens) {
  TANDEM_ASSIGN(const KvLease lease, reserve(0, num_tokens));
  const std::int64_t start_ns = steady_now_ns();
  TANDEM_TRY(read_prompt(num_tokens, lease));
  return static_cast<double>(steady_now_ns() - start_ns) * 1e-9;
}

// Gives a sequence another's keys and values in blocks of its own, so that one prompt is read for all of them.
void Rig::copy_blocks(const KvLease& from, const KvLease& to, std::uint32_t tokens) {
  const auto bytes = static_cast<std::size_t>(kv_layout_.block_bytes());
  for (std::size_t i = 0; i < num_blocks_for(tokens); ++i) {
    std::memcpy(kv_memory_.data() + to.blocks()[i].value * bytes, kv_memory_.data() + from.blocks()[i].value * bytes,
                bytes);
  }
}

absl::StatusOr<double> Rig::decode(std::uint32_t depth, std::uint32_t count) {
  std::vector<KvLease> leases;
  for (std::uint32_t i = 0; i < count; ++i) {
    TANDEM_ASSIGN(KvLease lease, reserve(i, std::max(depth, 1U) + options_.decode_tokens));
    if (depth != 0 && i == 0) TANDEM_TRY(read_prompt(depth, lease));
    if (i != 0) copy_blocks(leases.front(), lease, depth);
    leases.push_back(std::move(lease));
  }
  std::vector<TokenId> tokens(count);
  for (std::uint32_t i = 0; i < count; ++i) tokens[i] = static_cast<TokenId>((1 + 97 * i) % spec_.vocab_size);
  const std::int64_t start_ns = steady_now_ns();
  for (std::uint32_t turn = 0; turn < options_.decode_tokens; ++turn) {
    for (std::uint32_t i = 0; i < count; ++i) add_item(i, depth + turn, {&tokens[i], 1}, leases[i], true);
    TANDEM_TRY(run_plan());
    for (std::uint32_t i = 0; i < count; ++i) tokens[i] = result_.items[i].sampled.token;
  }
  return static_cast<double>(steady_now_ns() - start_ns) * 1e-9;
}

// The spread of tokens per second over the runs of one test.
absl::StatusOr<Spread> measure(const EngineBenchOptions& options, double tokens,
                               const std::function<absl::StatusOr<double>()>& run) {
  if (options.warm_up) TANDEM_TRY(run().status());
  std::vector<double> rates;
  for (std::uint32_t i = 0; i < options.repeat; ++i) {
    TANDEM_ASSIGN(const double seconds, run());
    rates.push_back(tokens / seconds);
  }
  return spread_of(std::move(rates));
}

}  // namespace

absl::Status run_engine_bench(const ModelFile& model, const EngineBenchOptions& options,
                              const std::function<void(const std::string&)>& about,
                              const std::function<void(const EngineBenchResult&)>& report) {
  for (const int threads : options.threads) {
    TANDEM_ASSIGN(const auto rig, Rig::create(model, options, threads));
    about(rig->description());
    EngineBenchResult result;
    result.threads = rig->threads();
    for (const std::uint32_t prompt : options.prompts) {
      if (prompt == 0) continue;
      result.prompt = prompt;
      TANDEM_ASSIGN(result.tokens_per_s, measure(options, prompt, [&] { return rig->prefill(prompt); }));
      report(result);
    }
    result.test = EngineBenchResult::Test::kDecode;
    result.prompt = 0;
    if (options.decode_tokens == 0) continue;
    for (const std::uint32_t depth : options.depths) {
      for (const std::uint32_t count : options.sequences) {
        result.depth = depth;
        result.sequences = count;
        const double tokens = static_cast<double>(count) * options.decode_tokens;
        TANDEM_ASSIGN(result.tokens_per_s, measure(options, tokens, [&] { return rig->decode(depth, count); }));
        report(result);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::bench
