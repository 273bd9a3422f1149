#include "instance.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "base/system_memory.h"
#include "fmt/core.h"
#include "kernels/cpu/backend.h"
#include "memory/owner_client.h"
#include "memory/region_names.h"
#include "tandem/model.h"
#include "text/bpe.h"

namespace tandem {
namespace {

constexpr char kDefaultModelFile[] = "SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr std::chrono::seconds kOwnerTimeout{10};
// The pool's default size leaves the rest of the available memory to weights, activations and everybody else.
constexpr double kDefaultPoolShare = 0.3;

absl::StatusOr<std::uint32_t> choose_num_blocks(const ServerConfig& config, const KvLayout& layout,
                                                std::uint32_t context) {
  const auto block_bytes = static_cast<std::uint64_t>(layout.block_bytes());
  const auto block_tokens = static_cast<std::uint64_t>(config.block_tokens);
  std::uint64_t blocks = 0;
  if (config.kv_cache_tokens) {
    blocks = (*config.kv_cache_tokens + block_tokens - 1) / block_tokens;
  } else if (config.kv_cache_gib) {
    blocks = static_cast<std::uint64_t>(*config.kv_cache_gib * 1024.0 * 1024.0 * 1024.0) / block_bytes;
  } else {
    const auto budget = static_cast<std::uint64_t>(static_cast<double>(available_memory_bytes()) * kDefaultPoolShare);
    const std::uint64_t useful =
        std::uint64_t{config.max_running_sequences} * ((context + block_tokens - 1) / block_tokens + 1);
    blocks = std::min(budget / block_bytes, useful);
  }
  const std::uint64_t available = available_memory_bytes();
  if (blocks * block_bytes > available) {
    return absl::ResourceExhaustedError(fmt::format(
        "a KV pool of {:.1f} GiB does not fit the {:.1f} GiB of available memory; give a smaller "
        "--kv-cache-tokens or --kv-cache-gib",
        static_cast<double>(blocks * block_bytes) / (1U << 30U), static_cast<double>(available) / (1U << 30U)));
  }
  if (blocks < 4 || blocks > UINT32_MAX) {
    return absl::InvalidArgumentError(
        fmt::format("a KV pool of {} blocks of {} tokens is out of range; give --kv-cache-tokens of at least {}",
                    blocks, block_tokens, 4 * block_tokens));
  }
  return static_cast<std::uint32_t>(blocks);
}

const char* log_level_word(LogLevel level) {
  const char* const words[] = {"trace", "debug", "info", "warning", "error", "off"};
  return words[static_cast<std::size_t>(level)];
}

const char* log_format_word(LogFormat format) { return format == LogFormat::kJson ? "json" : "text"; }

absl::StatusOr<ChildProcess> spawn_owner(const ServerConfig& config, const std::string& address) {
  return ChildProcess::spawn({"owner", "--socket", address, "--parent-pid", std::to_string(::getpid()), "--log-level",
                              log_level_word(config.log_level), "--log-format", log_format_word(config.log_format)});
}

std::string random_address() {
  std::random_device device;
  return fmt::format("@tandem-{}-{:08x}{:08x}", ::getpid(), device(), device());
}

// Makes a region the front end only names (the KV blocks), or maps and initialises one.
absl::Status make_region(OwnerClient& owner, const std::string& name, std::size_t bytes) {
  TANDEM_ASSIGN(const AttachedRegion region, owner.attach(name, bytes, kOwnerTimeout));
  return region.must_fill ? owner.publish(name, Seal::kNone) : absl::OkStatus();
}

absl::StatusOr<Mapping> make_mapped_region(OwnerClient& owner, const std::string& name, std::size_t bytes,
                                           const std::function<absl::Status(std::span<std::byte>)>& init) {
  TANDEM_ASSIGN(const AttachedRegion region, owner.attach(name, bytes, kOwnerTimeout));
  TANDEM_ASSIGN(Mapping memory, Mapping::map(region.fd, bytes, Access::kReadWrite));
  if (region.must_fill) {
    TANDEM_TRY(init(memory.bytes()));
    TANDEM_TRY(owner.publish(name, Seal::kNone));
  }
  return memory;
}

// As the worker's --kv-dtype takes it.
std::string_view kv_dtype_word(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kBF16: return "bf16";
    case DType::kQ8_0: return "q8_0";
    default: return "f16";
  }
}

std::string text_of(const TokenizerSpec& spec, std::optional<TokenId> id) {
  return id ? spec.tokens[static_cast<std::size_t>(*id)] : std::string();
}

// What keys and values depend on besides the tokens: the model's files, the KV type and the kernels that compute them.
std::string prefix_identity(const ServerConfig& config, const Backend& backend) {
  namespace fs = std::filesystem;
  std::string identity = fmt::format("{} {}", static_cast<int>(*config.kv_dtype), backend.info().kernels);
  std::error_code error;
  const auto add = [&](const fs::path& file) {
    identity += fmt::format(" {} {} {}", file.string(), fs::file_size(file, error),
                            fs::last_write_time(file, error).time_since_epoch().count());
  };
  if (!fs::is_directory(config.model, error)) {
    add(config.model);
    return identity;
  }
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(config.model, error)) files.push_back(entry.path());
  std::ranges::sort(files);
  for (const fs::path& file : files) add(file);
  return identity;
}

}  // namespace

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

DType default_kv_dtype(const ModelFile& model) {
  const bool quantised = std::ranges::any_of(model.tensors(), [](const NamedTensor& tensor) {
    const DType dtype = tensor.source.dtype;
    return dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16;
  });
  return quantised ? DType::kF16 : DType::kF32;
}

std::vector<std::string> worker_arguments(const ServerConfig& config, const std::string& owner_address,
                                          std::uint32_t num_blocks, LaneId lane, std::uint64_t epoch) {
  const std::string_view dtype = kv_dtype_word(config.kv_dtype.value_or(DType::kF16));
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
                                     std::string(dtype),
                                     "--block-tokens",
                                     std::to_string(config.block_tokens),
                                     "--num-blocks",
                                     std::to_string(num_blocks),
                                     "--max-rows",
                                     std::to_string(max_rows),
                                     "--parent-pid",
                                     std::to_string(::getpid()),
                                     "--log-level",
                                     log_level_word(config.log_level),
                                     "--log-format",
                                     log_format_word(config.log_format)};
  if (!config.isa.empty()) arguments.insert(arguments.end(), {"--isa", config.isa});
  return arguments;
}

absl::StatusOr<std::unique_ptr<Instance>> Instance::start(const ServerConfig& config, std::function<void()> on_fatal) {
  std::unique_ptr<Instance> instance(new Instance());
  ServerConfig resolved = config;
  TANDEM_ASSIGN(resolved.model, resolve_model_path(config.model));
  instance->model_path_ = resolved.model;
  // The processes come up while this one reads the model's text side: first the owner, which needs nothing of it.
  const std::string address = random_address();
  TANDEM_ASSIGN(ChildProcess owner, spawn_owner(resolved, address));
  TANDEM_TRY(instance->load_model(resolved));
  TANDEM_TRY(instance->start_processes(resolved, address, std::move(owner), std::move(on_fatal)));
  return instance;
}

Instance::~Instance() {
  if (scheduler_) scheduler_->stop(absl::UnavailableError("the server is shutting down"));
  if (output_) output_->stop();
  if (supervisor_) supervisor_->stop();
}

absl::Status Instance::load_model(ServerConfig& config) {
  TANDEM_ASSIGN(std::unique_ptr<ModelFile> model, open_model(config.model));
  spec_ = model->spec();
  if (!config.kv_dtype) config.kv_dtype = default_kv_dtype(*model);
  const TokenizerSpec& text = model->tokenizer();
  if (!text.chat_template.empty()) {
    TANDEM_ASSIGN(chat_template_,
                  ChatTemplate::create(text.chat_template, text_of(text, text.bos), text_of(text, text.eos)));
  }
  new_tokenizer_ =
      std::async(std::launch::async, [file = std::move(model)] { return create_tokenizer(file->tokenizer()); });
  return absl::OkStatus();
}

absl::Status Instance::start_processes(const ServerConfig& config, const std::string& address,
                                       ChildProcess owner_process, std::function<void()> on_fatal) {
  TANDEM_ASSIGN(const std::unique_ptr<Backend> backend,
                cpu::create_cpu_backend({config.isa, static_cast<int>(config.threads)}));
  const auto num_units = static_cast<std::uint16_t>(backend->info().num_units);

  const KvLayout layout = kv_layout(spec_, config.kv_dtype.value_or(DType::kF16), config.block_tokens);
  const auto model_context = static_cast<std::uint32_t>(spec_.context_length);
  const std::uint32_t context = std::min(config.max_context_tokens.value_or(model_context), model_context);
  TANDEM_ASSIGN(const std::uint32_t num_blocks, choose_num_blocks(config, layout, context));
  const std::uint32_t reserve_blocks = std::min(config.max_running_sequences, num_blocks / 16);

  TANDEM_ASSIGN(OwnerClient owner, OwnerClient::connect(address, kOwnerTimeout));
  TANDEM_ASSIGN(control_memory_, make_mapped_region(owner, kControlRegion, sizeof(ControlPage),
                                                    [](auto memory) { return init_control_page(memory).status(); }));
  TANDEM_ASSIGN(ControlPage * control, open_control_page(control_memory_.bytes()));
  TANDEM_ASSIGN(ledger_memory_, make_mapped_region(owner, kLedgerRegion, ledger_bytes(num_blocks),
                                                   [&](auto memory) { return init_ledger(memory, num_blocks); }));
  TANDEM_TRY(make_region(owner, kKvRegion, static_cast<std::size_t>(layout.block_bytes()) * num_blocks));
  KvPoolOptions pool{kSchedulerHolder, reserve_blocks};
  if (config.prefix_cache) {
    TANDEM_ASSIGN(prefix_memory_, make_mapped_region(owner, kPrefixRegion, num_blocks * sizeof(PrefixKey),
                                                     [](auto) { return absl::OkStatus(); }));
    pool.prefix_table = {reinterpret_cast<PrefixKey*>(prefix_memory_.data()), num_blocks};
  }
  TANDEM_ASSIGN(pool_, create_kv_pool(ledger_memory_.bytes(), *control, pool));

  SupervisorOptions supervision;
  supervision.num_lanes = config.placement == Placement::kSemi ? 2 : 1;
  supervision.worker_arguments = [config, address, num_blocks](LaneId lane, std::uint64_t epoch) {
    return worker_arguments(config, address, num_blocks, lane, epoch);
  };
  supervision.on_fatal = std::move(on_fatal);
  supervisor_ =
      std::make_unique<Supervisor>(std::move(supervision), std::move(owner_process), std::move(owner), *control);

  TANDEM_TRY(supervisor_->launch());

  TANDEM_ASSIGN(tokenizer_, new_tokenizer_.get());
  output_ = std::make_unique<OutputPipeline>(*tokenizer_, metrics_);
  SchedulerOptions scheduling;
  scheduling.placement = config.placement;
  scheduling.num_units = num_units;
  scheduling.max_running_sequences = config.max_running_sequences;
  scheduling.max_queued_sequences = config.max_queued_requests;
  scheduling.plan = {static_cast<std::uint32_t>(config.block_tokens), config.prefill_chunk_tokens,
                     config.max_running_sequences};
  if (config.prefix_cache) scheduling.prefix_identity = prefix_identity(config, *backend);
  scheduler_ = std::make_unique<Scheduler>(scheduling, *pool_, *control, *output_, metrics_,
                                           [this](LaneId lane) { supervisor_->kill_lane(lane); });
  output_->start([this](SequenceId sequence) { scheduler_->cancel(sequence); });

  LocalEngineOptions options;
  const std::filesystem::path path(model_path_);
  options.model.id = !config.served_model_name.empty()     ? config.served_model_name
                     : std::filesystem::is_directory(path) ? path.filename().string()
                                                           : path.stem().string();
  options.model.root = options.model.id;
  options.model.context_length = context;
  options.model.created = unix_now_s();
  options.max_sequence_tokens = (num_blocks - reserve_blocks) * static_cast<std::uint32_t>(config.block_tokens);
  options.default_ttft_ms = config.default_ttft_ms;
  options.default_tpot_ms = config.default_tpot_ms;
  options.trouble = [this] { return supervisor_->trouble(); };
  engine_ = std::make_unique<LocalEngine>(options, *tokenizer_, chat_template_.get(), *scheduler_, *output_, metrics_);

  scheduler_->start();
  TANDEM_TRY(supervisor_->start(*scheduler_));
  summary_ = fmt::format("placement {}, {} cores, context {} tokens, KV pool {} tokens ({:.2f} GiB)",
                         config.placement == Placement::kSemi ? "semi" : "fused", num_units, context,
                         std::uint64_t{num_blocks} * static_cast<std::uint32_t>(config.block_tokens),
                         static_cast<double>(layout.block_bytes()) * num_blocks / (1U << 30U));
  return absl::OkStatus();
}

}  // namespace tandem
