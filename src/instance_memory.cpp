#include "instance_memory.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/process_state.h"
#include "base/status.h"
#include "base/system_memory.h"
#include "fmt/core.h"
#include "fmt/ranges.h"
#include "memory/ledger.h"
#include "memory/owner_wire.h"
#include "memory/region_names.h"

namespace tandem {
namespace {

constexpr std::chrono::seconds kOwnerTimeout{10};
constexpr std::chrono::seconds kAttachedOwnerTimeout{2};  // a service manager may start it at the same time
// A killed server takes a moment to end, a live one never makes way.
constexpr std::chrono::seconds kServerTimeout{1};
constexpr std::int64_t kWorkersTimeoutUs = 10'000'000;
constexpr std::chrono::milliseconds kWorkersPoll{2};
// The pool's default size leaves the rest of the available memory to weights, activations and everybody else.
constexpr double kDefaultPoolShare = 0.3;
constexpr std::int32_t kDefaultBlockTokens = 16;

// What the options say, if they say it, in blocks of a record.
std::optional<std::uint64_t> asked_num_blocks(const ServerConfig& config, const PoolRecord& record) {
  const auto block_tokens = static_cast<std::uint64_t>(record.block_tokens);
  if (config.kv_cache_tokens) return (*config.kv_cache_tokens + block_tokens - 1) / block_tokens;
  if (config.kv_cache_gib) {
    return static_cast<std::uint64_t>(*config.kv_cache_gib * 1024.0 * 1024.0 * 1024.0) / record.block_bytes;
  }
  return std::nullopt;
}

absl::StatusOr<std::uint32_t> choose_num_blocks(const ServerConfig& config, const PoolRecord& record,
                                                std::uint32_t context) {
  const auto block_tokens = static_cast<std::uint64_t>(record.block_tokens);
  const std::uint64_t block_bytes = record.block_bytes;
  const std::uint64_t available = available_memory_bytes();
  const auto budget = static_cast<std::uint64_t>(static_cast<double>(available) * kDefaultPoolShare);
  const std::uint64_t useful =
      std::uint64_t{config.max_running_sequences} * ((context + block_tokens - 1) / block_tokens + 1);
  const std::uint64_t blocks = asked_num_blocks(config, record).value_or(std::min(budget / block_bytes, useful));
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

// Maps a region, and initialises it when this is the first server.
absl::StatusOr<Mapping> map_region(OwnerClient& owner, const std::string& name, std::size_t bytes,
                                   const std::function<absl::Status(std::span<std::byte>)>& init) {
  TANDEM_ASSIGN(const AttachedRegion region, owner.attach(name, bytes, kOwnerTimeout));
  TANDEM_ASSIGN(Mapping memory, Mapping::map(region.fd, bytes, Access::kReadWrite));
  if (region.must_fill) {
    TANDEM_TRY(init(memory.bytes()));
    TANDEM_TRY(owner.publish(name, Seal::kNone));
  }
  return memory;
}

// Holds the lock of the one server.
absl::StatusOr<OwnerClient> lock_server(const std::string& address, bool attached,
                                        const std::function<bool()>& owner_lives) {
  TANDEM_ASSIGN(OwnerClient lock,
                OwnerClient::connect(address, attached ? kAttachedOwnerTimeout : kOwnerTimeout, owner_lives));
  const absl::Status taken = lock.attach(kServerRegion, 1, kServerTimeout).status();
  if (taken.ok()) return lock;
  if (!absl::IsDeadlineExceeded(taken) || is_stopped(lock.peer_pid())) return taken;
  TANDEM_ASSIGN(OwnerClient other, OwnerClient::connect(address, kAttachedOwnerTimeout));
  TANDEM_ASSIGN(const std::vector<RegionInfo> regions, other.stat());
  const auto held = std::ranges::find(regions, kServerRegion, &RegionInfo::name);
  return absl::FailedPreconditionError(
      fmt::format("another server, pid {}, uses the owner at {}; stop it or start an owner of its own",
                  held == regions.end() ? 0 : held->filler_pid, address));
}

// Workers die with their server, but not before it: one may be in the middle of a step still.
absl::Status await_old_workers(OwnerClient& owner) {
  const std::int64_t deadline_us = steady_now_us() + kWorkersTimeoutUs;
  for (;;) {
    TANDEM_ASSIGN(const std::vector<RegionInfo> regions, owner.stat());
    std::vector<int> pids;
    for (const RegionInfo& region : regions) {
      if (region.name.starts_with(kWorkerPrefix)) pids.push_back(region.filler_pid);
    }
    if (pids.empty()) return absl::OkStatus();
    if (steady_now_us() > deadline_us) {
      return absl::FailedPreconditionError(
          fmt::format("workers of the server before this one still use the owner's memory: pid {}; end them",
                      fmt::join(pids, ", ")));
    }
    std::this_thread::sleep_for(kWorkersPoll);
  }
}

absl::Status drop_old_channels(OwnerClient& owner) {
  TANDEM_ASSIGN(const std::vector<RegionInfo> regions, owner.stat());
  for (const RegionInfo& region : regions) {
    if (region.name.starts_with(kChannelPrefix)) TANDEM_TRY(owner.drop(region.name));
  }
  return absl::OkStatus();
}

absl::StatusOr<PoolRecord> new_pool_record(const ServerConfig& config, const ModelFingerprint& model) {
  PoolRecord record;
  record.block_tokens = config.block_tokens.value_or(kDefaultBlockTokens);
  record.kv_dtype = config.kv_dtype.value_or(model.default_kv_dtype);
  record.block_bytes =
      static_cast<std::uint64_t>(kv_layout(model.spec, record.kv_dtype, record.block_tokens).block_bytes());
  record.model = model.hash;
  owner_wire::set_field(record.model_path, config.model);
  TANDEM_ASSIGN(record.num_blocks, choose_num_blocks(config, record, context_tokens(config, model.spec)));
  return record;
}

absl::StatusOr<PoolRecord> settle_pool(OwnerClient& owner, const ServerConfig& config, const ModelFingerprint& model) {
  const auto write = [&](std::span<std::byte> bytes) -> absl::Status {
    TANDEM_ASSIGN(const PoolRecord record, new_pool_record(config, model));
    std::memcpy(bytes.data(), &record, sizeof(record));
    return absl::OkStatus();
  };
  TANDEM_ASSIGN(const Mapping memory, map_region(owner, kRecordRegion, sizeof(PoolRecord), write));
  TANDEM_ASSIGN(PoolRecord record, read_pool_record(memory.bytes()));
  TANDEM_TRY(check_pool_record(record, {.model = model.hash,
                                        .model_path = config.model,
                                        .block_tokens = config.block_tokens,
                                        .kv_dtype = config.kv_dtype,
                                        .num_blocks = asked_num_blocks(config, record)}));
  return record;
}

}  // namespace

std::uint32_t context_tokens(const ServerConfig& config, const ModelSpec& spec) {
  const auto model_context = static_cast<std::uint32_t>(spec.context_length);
  return std::min(config.max_context_tokens.value_or(model_context), model_context);
}

absl::StatusOr<InstanceMemory> open_instance_memory(const ServerConfig& config, const std::string& address,
                                                    const ModelFingerprint& model,
                                                    const std::function<bool()>& owner_lives) {
  TANDEM_ASSIGN(OwnerClient lock, lock_server(address, !config.owner_socket.empty(), owner_lives));
  TANDEM_ASSIGN(OwnerClient owner, OwnerClient::connect(address, kOwnerTimeout, owner_lives));
  TANDEM_TRY(await_old_workers(owner));
  TANDEM_ASSIGN(const PoolRecord pool, settle_pool(owner, config, model));
  InstanceMemory memory{.lock = std::move(lock),
                        .owner = std::move(owner),
                        .pool = pool,
                        .control = {},
                        .ledger = {},
                        .prefix_table = {}};

  const auto zero = [](std::span<std::byte>) { return absl::OkStatus(); };
  TANDEM_ASSIGN(memory.control, map_region(memory.owner, kControlRegion, sizeof(ControlPage),
                                           [](auto bytes) { return init_control_page(bytes).status(); }));
  TANDEM_ASSIGN(ControlPage * control, open_control_page(memory.control.bytes()));
  // No step of an earlier server runs any more.
  for (LaneCounters& lane : control->lanes) lane.completed_step.store(lane.issued_step.load());
  new (&control->server) ServerCounters();  // what it counts begins with this server
  TANDEM_TRY(drop_old_channels(memory.owner));
  TANDEM_ASSIGN(memory.ledger, map_region(memory.owner, kLedgerRegion, Ledger::bytes(pool.num_blocks),
                                          [&](auto bytes) { return Ledger::init(bytes, pool.num_blocks); }));
  TANDEM_ASSIGN(const AttachedRegion blocks,
                memory.owner.attach(kKvRegion, pool.block_bytes * pool.num_blocks, kOwnerTimeout));
  if (blocks.must_fill) TANDEM_TRY(memory.owner.publish(kKvRegion, Seal::kNone));
  if (config.prefix_cache) {
    TANDEM_ASSIGN(memory.prefix_table,
                  map_region(memory.owner, kPrefixRegion, pool.num_blocks * sizeof(PrefixKey), zero));
  }
  return memory;
}

}  // namespace tandem
