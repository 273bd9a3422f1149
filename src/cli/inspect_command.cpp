// `tandem inspect`: what an owner's memory holds, read without touching it. Numbers of a moment: a server may be at
// work.
#include <charconv>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/handles.h"
#include "base/status.h"
#include "cli/commands.h"
#include "fmt/core.h"
#include "ipc/control_page.h"
#include "memory/kv_usage.h"
#include "memory/owner_client.h"
#include "memory/pool_record.h"
#include "memory/region_names.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::seconds kTimeout{2};

const char* state_word(RegionState state) {
  switch (state) {
    case RegionState::kFilling: return "filling";
    case RegionState::kReady: return "ready";
    case RegionState::kSealed: return "sealed";
  }
  return "unknown";
}

struct WorkerLock {
  std::uint32_t lane = 0;
  std::uint64_t epoch = 0;
};

// What worker_region() has named; nullopt: the region is something else's.
std::optional<WorkerLock> parse_worker_region(std::string_view name) {
  if (!name.starts_with(kWorkerPrefix)) return std::nullopt;
  name.remove_prefix(kWorkerPrefix.size());
  WorkerLock lock;
  const char* const end = name.data() + name.size();
  const auto lane = std::from_chars(name.data(), end, lock.lane);
  if (lane.ec != std::errc() || lane.ptr == end || *lane.ptr != '.') return std::nullopt;
  const auto epoch = std::from_chars(lane.ptr + 1, end, lock.epoch);
  if (epoch.ec != std::errc() || epoch.ptr != end) return std::nullopt;
  return lock;
}

// Null when nobody has made the region, or is not done with it.
absl::StatusOr<std::optional<Mapping>> map_ready(OwnerClient& owner, const std::vector<RegionInfo>& regions,
                                                 std::string_view name) {
  for (const RegionInfo& region : regions) {
    if (region.name != name || region.state == RegionState::kFilling) continue;
    TANDEM_ASSIGN(const AttachedRegion attached, owner.attach(name, region.bytes, kTimeout));
    TANDEM_ASSIGN(Mapping memory, Mapping::map(attached.fd, region.bytes, Access::kRead));
    return std::optional<Mapping>(std::move(memory));
  }
  return std::optional<Mapping>();
}

Json processes_json(const std::vector<RegionInfo>& regions) {
  Json server = nullptr;
  Json workers = Json::array();
  for (const RegionInfo& region : regions) {
    if (region.name == kServerRegion) server = region.filler_pid;
    if (const auto worker = parse_worker_region(region.name)) {
      workers.push_back({{"lane", worker->lane}, {"epoch", worker->epoch}, {"pid", region.filler_pid}});
    }
  }
  return {{"server_pid", server}, {"workers", workers}};
}

Json regions_json(const std::vector<RegionInfo>& regions) {
  Json list = Json::array();
  for (const RegionInfo& region : regions) {
    if (region.name == kServerRegion || parse_worker_region(region.name)) continue;  // locks, not memory
    list.push_back({{"name", region.name}, {"bytes", region.bytes}, {"state", state_word(region.state)}});
  }
  return list;
}

absl::Status add_pool(OwnerClient& owner, const std::vector<RegionInfo>& regions, Json& out) {
  TANDEM_ASSIGN(const auto record_memory, map_ready(owner, regions, kRecordRegion));
  TANDEM_ASSIGN(const auto ledger, map_ready(owner, regions, kLedgerRegion));
  if (!record_memory || !ledger) return absl::OkStatus();
  TANDEM_ASSIGN(const PoolRecord record, read_pool_record(record_memory->bytes()));
  TANDEM_ASSIGN(const KvPoolUsage usage, read_kv_usage(ledger->bytes()));
  TANDEM_ASSIGN(const KvFreeRuns runs, read_free_runs(ledger->bytes()));
  out["pool"] = {{"model", std::string(record.model_path)},
                 {"kv_dtype", std::string(kv_dtype_word(record.kv_dtype))},
                 {"block_tokens", record.block_tokens},
                 {"block_bytes", record.block_bytes},
                 {"num_blocks", record.num_blocks}};
  out["blocks"] = {
      {"free", usage.free}, {"held", usage.held}, {"published", usage.published}, {"retiring", usage.retiring}};
  out["fragmentation"] = {{"num_free_runs", runs.num_runs}, {"longest_free_run", runs.longest}};
  return absl::OkStatus();
}

// What the running server says of its sequences; without one the numbers are those of a server that is gone.
Json use_json(const ServerCounters& server) {
  return {{"prefill", {{"sequences", server.prefill_sequences.load()}, {"blocks", server.prefill_blocks.load()}}},
          {"decode", {{"sequences", server.decode_sequences.load()}, {"blocks", server.decode_blocks.load()}}},
          {"waiting_sequences", server.waiting_sequences.load()},
          {"evictable_blocks", server.evictable_blocks.load()},
          {"prefix_tokens_asked", server.prefix_tokens_asked.load()},
          {"prefix_tokens_hit", server.prefix_tokens_hit.load()}};
}

absl::Status add_control(OwnerClient& owner, const std::vector<RegionInfo>& regions, Json& out) {
  TANDEM_ASSIGN(const auto memory, map_ready(owner, regions, kControlRegion));
  if (!memory) return absl::OkStatus();
  TANDEM_ASSIGN(const ControlPage* control, open_control_page(memory->bytes()));
  if (!out["server_pid"].is_null()) out["use"] = use_json(control->server);
  for (std::size_t index = 0; index < kMaxLanes; ++index) {
    const LaneCounters& lane = control->lanes[index];
    if (lane.epoch.load() == 0) continue;  // never lived
    out["lanes"].push_back({{"lane", index},
                            {"epoch", lane.epoch.load()},
                            {"issued_step", lane.issued_step.load()},
                            {"completed_step", lane.completed_step.load()}});
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> inspect(const std::string& address) {
  TANDEM_ASSIGN(OwnerClient owner, OwnerClient::connect(address, kTimeout));
  TANDEM_ASSIGN(const std::vector<RegionInfo> regions, owner.stat());
  Json out{{"owner", address}};
  out.update(processes_json(regions));
  out["pool"] = nullptr;
  out["blocks"] = nullptr;
  out["fragmentation"] = nullptr;
  out["use"] = nullptr;
  out["lanes"] = Json::array();
  out["regions"] = regions_json(regions);
  TANDEM_TRY(add_pool(owner, regions, out));
  TANDEM_TRY(add_control(owner, regions, out));
  return out;
}

std::string use_text(const Json& use) {
  const auto number = [](const Json& value) { return value.get<std::uint64_t>(); };
  std::string text = "in use, a shared block once for each sequence\n";
  for (const char* phase : {"prefill", "decode"}) {
    text += fmt::format("  {:<10}{:>10} blocks of {} sequences\n", phase, number(use[phase]["blocks"]),
                        number(use[phase]["sequences"]));
  }
  const std::uint64_t asked = number(use["prefix_tokens_asked"]);
  const std::uint64_t hit = number(use["prefix_tokens_hit"]);
  return text + fmt::format(
                    "  {:<10}{:>10} sequences\n  {:<10}{:>10} blocks of the prefix cache\n"
                    "prefix cache since the server started: {} of {} prompt tokens ({:.1f} %)\n",
                    "waiting", number(use["waiting_sequences"]), "evictable", number(use["evictable_blocks"]), hit,
                    asked, asked == 0 ? 0.0 : 100.0 * static_cast<double>(hit) / static_cast<double>(asked));
}

std::string to_text(const Json& all) {
  std::string text = fmt::format("owner {}\n", all["owner"].get<std::string>());
  text += all["server_pid"].is_null() ? "no server\n" : fmt::format("server pid {}\n", all["server_pid"].get<int>());
  for (const Json& worker : all["workers"]) {
    text += fmt::format("worker pid {} of lane {}, life {}\n", worker["pid"].get<int>(),
                        worker["lane"].get<std::uint32_t>(), worker["epoch"].get<std::uint64_t>());
  }
  if (const Json& pool = all["pool"]; !pool.is_null()) {
    const Json& blocks = all["blocks"];
    const auto num_blocks = pool["num_blocks"].get<std::uint64_t>();
    const auto percent = [&](const char* state) {
      return 100.0 * blocks[state].get<double>() / static_cast<double>(num_blocks);
    };
    text += fmt::format("\nmodel {}\nKV pool {} blocks of {} tokens in {}, {} bytes each\n",
                        pool["model"].get<std::string>(), num_blocks, pool["block_tokens"].get<int>(),
                        pool["kv_dtype"].get<std::string>(), pool["block_bytes"].get<std::uint64_t>());
    for (const char* state : {"free", "held", "published", "retiring"}) {
      text += fmt::format("  {:<10}{:>10}{:>7.1f} %{}\n", state, blocks[state].get<std::uint64_t>(), percent(state),
                          std::string_view(state) == "published" ? "  (the prefix cache)" : "");
    }
    text += fmt::format("  free runs {:>10}, the longest of {} blocks\n",
                        all["fragmentation"]["num_free_runs"].get<std::uint64_t>(),
                        all["fragmentation"]["longest_free_run"].get<std::uint64_t>());
  }
  if (!all["use"].is_null()) text += use_text(all["use"]);
  text += fmt::format("\n{:<6}{:>8}{:>14}{:>14}\n", "lane", "life", "issued", "completed");
  for (const Json& lane : all["lanes"]) {
    text += fmt::format("{:<6}{:>8}{:>14}{:>14}\n", lane["lane"].get<int>(), lane["epoch"].get<std::uint64_t>(),
                        lane["issued_step"].get<std::uint64_t>(), lane["completed_step"].get<std::uint64_t>());
  }
  text += fmt::format("\n{:<20}{:>16}  {}\n", "region", "bytes", "state");
  for (const Json& region : all["regions"]) {
    text += fmt::format("{:<20}{:>16}  {}\n", region["name"].get<std::string>(), region["bytes"].get<std::uint64_t>(),
                        region["state"].get<std::string>());
  }
  return text;
}

}  // namespace

int inspect_command(const InspectOptions& options) {
  const absl::StatusOr<Json> found = inspect(options.owner_socket);
  if (!found.ok()) {
    const std::string_view why = message(found.status());
    std::fprintf(stderr, "tandem: %.*s\n", static_cast<int>(why.size()), why.data());
    return 1;
  }
  const std::string text =
      options.json ? found->dump(2, ' ', false, Json::error_handler_t::replace) + "\n" : to_text(*found);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace tandem
