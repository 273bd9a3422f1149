#include "instance.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string_view>

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/system_memory.h"
#include "cli/names.h"
#include "cli/serve_limits.h"
#include "fmt/core.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/team.h"
#include "memory/prefix_key.h"
#include "model/fingerprint.h"
#include "tandem/model.h"
#include "text/bpe.h"

namespace tandem {
namespace {

constexpr char kDefaultModelFile[] = "SmolLM2-135M-Instruct.Q4_1.gguf";

std::string word(LogLevel level) { return std::string(word_of(kLogLevelWords, level)); }
std::string word(LogFormat format) { return std::string(word_of(kLogFormatWords, format)); }

absl::StatusOr<ChildProcess> spawn_owner(const ServerConfig& config, const std::string& address) {
  return ChildProcess::spawn({"owner", "--socket", address, "--parent-pid", std::to_string(::getpid()), "--log-level",
                              word(config.log_level), "--log-format", word(config.log_format)});
}

// An owner that has ended is why, whatever failed for lack of it.
absl::Status with_cause(const absl::Status& status, ChildProcess& owner) {
  constexpr int kEndTimeoutMs = 1000;  // its connections close shortly before it has ended
  if (!absl::IsUnavailable(status) || !owner.running()) return status;
  const std::optional<ProcessEnd> end = owner.wait(kEndTimeoutMs);
  return end ? absl::InternalError(fmt::format("the memory owner ended ({})", end->how)) : status;
}

std::string random_address() {
  std::random_device device;
  return fmt::format("@tandem-{}-{:08x}{:08x}", ::getpid(), device(), device());
}

std::string text_of(const TokenizerSpec& spec, std::optional<TokenId> id) {
  return id ? spec.tokens[static_cast<std::size_t>(*id)] : std::string();
}

}  // namespace

// Hands a worker's coming and going to the scheduler.
class Instance::SchedulerLanes final : public LaneListener {
 public:
  explicit SchedulerLanes(Instance& instance) : instance_(instance) {}
  void lane_up(LaneId lane, std::uint64_t epoch, std::unique_ptr<LanePort> port) override {
    instance_.scheduler_->lane_up(lane, std::move(port), epoch,
                                  [this, lane, epoch] { instance_.supervisor_->lane_taken(lane, epoch); });
  }
  void lane_down(LaneId lane, std::uint64_t epoch) override { instance_.scheduler_->lane_down(lane, epoch); }
  void lane_stuck(LaneId lane, std::uint64_t epoch) override { instance_.scheduler_->lane_stuck(lane, epoch); }

 private:
  Instance& instance_;
};

Instance::Instance() = default;

absl::StatusOr<std::string> resolve_model_path(const std::string& model) {
  if (!model.empty()) return model;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path path = cache != nullptr && *cache != '\0'
                                   ? std::filesystem::path(cache)
                                   : std::filesystem::path(home != nullptr ? home : ".") / ".cache";
  path = path / "tandem" / "models" / kDefaultModelFile;
  std::error_code error;
  if (std::filesystem::exists(path, error)) return path.string();
  return absl::NotFoundError(fmt::format(
      "no --model was given and the default model is not at {}; ./quickstart serve fetches it", path.string()));
}

std::uint32_t settle_threads(std::uint32_t asked) {
  const CgroupLimits limits = read_cgroup_limits();
  const std::size_t num_cores = cpu::allowed_cpus().size();
  const std::uint32_t threads = asked == 0 ? default_threads(num_cores, limits.cpus) : asked;
  TANDEM_LOG(kInfo, "{}", machine_line(num_cores, threads, available_memory_bytes(), limits));
  return threads;  // stated, so that a worker that starts on fewer cores still has the units that the scheduler shares
                   // out
}

DType default_kv_dtype(const ModelFile& model) {
  const bool quantised = std::ranges::any_of(model.tensors(), [](const NamedTensor& tensor) {
    const DType dtype = tensor.source.dtype;
    return dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16;
  });
  return quantised ? DType::kF16 : DType::kF32;
}

std::vector<std::string> worker_arguments(const ServerConfig& config, const std::string& owner_address,
                                          const PoolRecord& pool, LaneId lane, std::uint64_t epoch) {
  const std::uint32_t max_rows = config.prefill_chunk_tokens + config.max_running_sequences;
  std::vector<std::string> arguments{"worker",
                                     "--owner-socket",
                                     owner_address,
                                     "--model",
                                     config.model,
                                     "--lane",
                                     std::to_string(lane.value),
                                     "--epoch",
                                     std::to_string(epoch),
                                     "--threads",
                                     std::to_string(config.threads),
                                     "--kv-dtype",
                                     std::string(kv_dtype_word(pool.kv_dtype)),
                                     "--block-tokens",
                                     std::to_string(pool.block_tokens),
                                     "--num-blocks",
                                     std::to_string(pool.num_blocks),
                                     "--max-rows",
                                     std::to_string(max_rows),
                                     "--parent-pid",
                                     std::to_string(::getpid()),
                                     "--log-level",
                                     word(config.log_level),
                                     "--log-format",
                                     word(config.log_format)};
  if (!config.isa.empty()) arguments.insert(arguments.end(), {"--isa", config.isa});
  return arguments;
}

absl::StatusOr<std::unique_ptr<Instance>> Instance::start(const ServerConfig& config, std::function<void()> on_fatal) {
  std::unique_ptr<Instance> instance(new Instance());
  ServerConfig resolved = config;
  TANDEM_ASSIGN(resolved.model, resolve_model_path(config.model));
  instance->model_path_ = resolved.model;
  resolved.threads = settle_threads(resolved.threads);
  // The processes come up while this one reads the model's text side: first the owner, which needs nothing of it.
  std::string address = config.owner_socket;
  ChildProcess owner;
  if (address.empty()) {
    address = random_address();
    TANDEM_ASSIGN(owner, spawn_owner(resolved, address));
  }
  TANDEM_TRY(instance->load_model(resolved.model));
  TANDEM_TRY(instance->start_processes(resolved, address, std::move(owner), std::move(on_fatal)));
  return instance;
}

Instance::~Instance() {
  if (scheduler_) scheduler_->stop(absl::UnavailableError("the server is shutting down"));
  if (output_) output_->stop();
  if (supervisor_) supervisor_->stop();
}

absl::Status Instance::load_model(const std::string& path) {
  TANDEM_ASSIGN(std::unique_ptr<ModelFile> model, open_model(path));
  spec_ = model->spec();
  default_kv_dtype_ = default_kv_dtype(*model);
  identity_ = model_fingerprint(path, *model);
  const TokenizerSpec& text = model->tokenizer();
  if (!text.chat_template.empty()) {
    TANDEM_ASSIGN(chat_template_,
                  ChatTemplate::create(text.chat_template, text_of(text, text.bos), text_of(text, text.eos)));
  }
  new_tokenizer_ =
      std::async(std::launch::async, [file = std::move(model)] { return create_tokenizer(file->tokenizer()); });
  return absl::OkStatus();
}

absl::Status Instance::start_processes(ServerConfig config, const std::string& address, ChildProcess owner_process,
                                       std::function<void()> on_fatal) {
  TANDEM_ASSIGN(const std::unique_ptr<Backend> backend,
                cpu::create_cpu_backend({config.isa, static_cast<int>(config.threads)}));
  const auto num_units = static_cast<std::uint16_t>(backend->info().num_units);
  if (config.placement == Placement::kSemi && config.decode_units.value_or(0) >= num_units) {
    return absl::InvalidArgumentError(
        fmt::format("decode-units: {} of {} leave prefill none; write auto or less", *config.decode_units, num_units));
  }

  absl::StatusOr<InstanceMemory> opened =
      open_instance_memory(config, address, {spec_, default_kv_dtype_, prefix_root(identity_, "")},
                           [&owner_process] { return !owner_process.ended(); });
  if (!opened.ok()) return with_cause(opened.status(), owner_process);
  InstanceMemory& memory = *opened;
  const std::uint32_t num_blocks = memory.pool.num_blocks;
  const auto block_tokens = static_cast<std::uint32_t>(memory.pool.block_tokens);
  const std::uint32_t reserve_blocks = std::min(config.max_running_sequences, num_blocks / 16);
  server_lock_ = std::move(memory.lock);
  control_memory_ = std::move(memory.control);
  ledger_memory_ = std::move(memory.ledger);
  prefix_memory_ = std::move(memory.prefix_table);
  TANDEM_ASSIGN(ControlPage * control, open_control_page(control_memory_.bytes()));
  KvPoolOptions pool{kSchedulerHolder, reserve_blocks};
  if (config.prefix_cache) pool.prefix_table = {reinterpret_cast<PrefixKey*>(prefix_memory_.data()), num_blocks};
  TANDEM_ASSIGN(pool_, KvPool::create(ledger_memory_.bytes(), pool));
  if (!config.owner_socket.empty()) {
    TANDEM_LOG(kInfo, "uses the owner at {}: {} KV blocks of {} tokens in {}, {} of them cached", address, num_blocks,
               block_tokens, kv_dtype_word(memory.pool.kv_dtype), pool_->usage().published);
  }

  OwnerHostOptions hosting;
  hosting.worker_arguments = [config, address, pool = memory.pool](LaneId lane, std::uint64_t epoch) {
    return worker_arguments(config, address, pool, lane, epoch);
  };
  hosting.owner_address = address;
  hosting.owner_up =
      metrics_.gauge("tandem_owner_up", "0 while the memory owner is stopped and no worker can be replaced, else 1");
  host_ = std::make_unique<OwnerHost>(std::move(hosting), std::move(owner_process), std::move(memory.owner));
  SupervisorOptions supervision;
  supervision.num_lanes = config.placement == Placement::kSemi ? 2 : 1;
  for (const char* const lane : {"prefill", "decode"}) {
    supervision.lane_up.push_back(metrics_.gauge("tandem_lane_up", "1 while a worker serves the lane, else 0",
                                                 {{"lane", supervision.num_lanes == 1 ? "fused" : lane}}));
    if (supervision.lane_up.size() == supervision.num_lanes) break;
  }
  supervision.on_fatal = std::move(on_fatal);
  supervisor_ = std::make_unique<Supervisor>(std::move(supervision), *host_, *control);
  lanes_ = std::make_unique<SchedulerLanes>(*this);

  TANDEM_TRY(supervisor_->launch(*lanes_));

  TANDEM_ASSIGN(tokenizer_, new_tokenizer_.get());
  output_ = std::make_unique<OutputPipeline>(*tokenizer_, metrics_);
  SchedulerOptions scheduling;
  scheduling.placement = config.placement;
  scheduling.num_units = num_units;
  scheduling.decode_units = config.decode_units;
  scheduling.max_running_sequences = config.max_running_sequences;
  scheduling.max_queued_sequences = config.max_queued_requests;
  scheduling.look_ahead_steps = config.look_ahead_steps;
  scheduling.plan = {block_tokens,
                     config.prefill_chunk_tokens,
                     config.max_running_sequences,
                     ChannelSizes{}.plan_ring_bytes,
                     max_result_bytes(ChannelSizes{}),
                     spec_.vocab_size};
  if (config.prefix_cache) {
    scheduling.prefix_identity =
        fmt::format("{} {} {}", identity_, kv_dtype_word(memory.pool.kv_dtype), backend->info().kernels);
  }
  scheduler_ =
      std::make_unique<Scheduler>(scheduling, *pool_, *control, *output_, metrics_,
                                  [this](LaneId lane, std::uint64_t epoch) { supervisor_->kill_worker(lane, epoch); });
  output_->start([this](SequenceId sequence) { scheduler_->cancel(sequence); });

  LocalEngineOptions options;
  options.model.id = config.served_model_name.empty() ? model_name(model_path_) : config.served_model_name;
  options.model.root = options.model.id;
  options.model.context_length = context_tokens(config, spec_);
  options.model.created = unix_now_s();
  options.max_sequence_tokens = (num_blocks - reserve_blocks) * block_tokens;
  if (options.max_sequence_tokens < options.model.context_length) {
    TANDEM_LOG(kWarning,
               "the KV pool holds {} tokens of one request, less than the context of {}: longer ones are refused; "
               "--kv-cache-tokens makes it larger",
               options.max_sequence_tokens, options.model.context_length);
  }
  options.default_ttft_ms = config.default_ttft_ms;
  options.default_tpot_ms = config.default_tpot_ms;
  options.trouble = [this] { return supervisor_->trouble(); };
  options.placement = [this, placement = config.placement, num_units] {
    return PlacementState{placement, num_units, scheduler_->decode_units(), supervisor_->lanes()};
  };
  options.set_placement = [this](const PlacementChange& change, PlacementDone done) {
    if (change.decode_units) scheduler_->set_decode_units(*change.decode_units);
    supervisor_->replace(change.replace, std::move(done));
  };
  options.end_placement_changes = [this] { supervisor_->stop_replacing(); };
  engine_ = std::make_unique<LocalEngine>(options, *tokenizer_, chat_template_.get(), *scheduler_, *output_, metrics_);

  scheduler_->start();
  TANDEM_TRY(supervisor_->start());
  summary_ = fmt::format("placement {}, {} cores, context {} tokens, KV pool {} tokens ({:.2f} GiB)",
                         config.placement == Placement::kSemi ? "semi" : "fused", num_units,
                         options.model.context_length, std::uint64_t{num_blocks} * block_tokens,
                         static_cast<double>(memory.pool.block_bytes) * num_blocks / (1U << 30U));
  return absl::OkStatus();
}

}  // namespace tandem
