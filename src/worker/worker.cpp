#include "worker/worker.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/handles.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/status.h"
#include "fmt/core.h"
#include "ipc/control_page.h"
#include "memory/owner_client.h"
#include "memory/region_names.h"
#include "model/decoder.h"
#include "model/weights.h"
#include "tandem/model.h"
#include "worker/lane.h"

namespace tandem {
namespace {

constexpr std::chrono::seconds kConnectTimeout{10};
constexpr std::chrono::seconds kAttachTimeout{10};
constexpr std::chrono::minutes kWeightsTimeout{30};  // another worker may be filling them
constexpr std::int32_t kLogitRows = 64;

absl::StatusOr<Mapping> map_region(OwnerClient& owner, Backend& backend, const std::string& name, std::size_t bytes,
                                   Access access) {
  TANDEM_ASSIGN(const AttachedRegion region, owner.attach(name, bytes, kAttachTimeout));
  if (region.must_fill) return absl::FailedPreconditionError(fmt::format("region {} was never made", name));
  return backend.memory().map(region.fd, bytes, access);
}

// The sealed weights; fills them first when this worker is the first to ask.
absl::StatusOr<Mapping> map_weights(OwnerClient& owner, Backend& backend, Stream& stream, const WeightsLayout& layout) {
  TANDEM_ASSIGN(const AttachedRegion region, owner.attach(kWeightsRegion, layout.bytes(), kWeightsTimeout));
  if (region.must_fill) {
    Progress progress("loading weights");
    TANDEM_ASSIGN(Mapping writable, backend.memory().map(region.fd, layout.bytes(), Access::kReadWrite));
    layout.fill(writable.bytes(), backend, stream,
                [&progress](std::size_t done, std::size_t total) { progress.update(done, total); });
    TANDEM_TRY(stream.synchronize());
    writable = Mapping();
    TANDEM_TRY(owner.publish(kWeightsRegion, Seal::kReadOnly));
    progress.finish(layout.bytes());
  }
  return backend.memory().map(region.fd, layout.bytes(), Access::kRead);
}

}  // namespace

absl::Status run_worker(const WorkerOptions& options, Backend& backend, const std::function<bool()>& keep_going) {
  const std::int64_t start_us = steady_now_us();
  TANDEM_ASSIGN(OwnerClient owner, OwnerClient::connect(options.owner_address, kConnectTimeout));
  // Before anything else, so that no front end hands out memory which this process may still write.
  TANDEM_ASSIGN(const AttachedRegion life, owner.attach(worker_region(options.lane, options.epoch), 1, kAttachTimeout));
  TANDEM_ASSIGN(const auto stream, backend.open_stream(Share{}));
  TANDEM_ASSIGN(std::unique_ptr<ModelFile> model, open_model(options.model));
  const ModelSpec spec = model->spec();
  TANDEM_ASSIGN(const WeightsLayout layout, WeightsLayout::create(*model, backend));
  TANDEM_ASSIGN(const Mapping weights_memory, map_weights(owner, backend, *stream, layout));
  TANDEM_ASSIGN(DecoderWeights weights, layout.bind(weights_memory.bytes()));
  model.reset();

  const KvView kv{nullptr, kv_layout(spec, options.kv_dtype, static_cast<std::int32_t>(options.block_tokens))};
  const std::size_t kv_bytes = static_cast<std::size_t>(kv.layout.block_bytes()) * options.num_blocks;
  TANDEM_ASSIGN(const Mapping kv_memory, map_region(owner, backend, kKvRegion, kv_bytes, Access::kReadWrite));
  TANDEM_ASSIGN(const Mapping control_memory,
                map_region(owner, backend, kControlRegion, sizeof(ControlPage), Access::kReadWrite));
  TANDEM_ASSIGN(ControlPage * control, open_control_page(control_memory.bytes()));
  const std::string channel_name = channel_region(options.lane, options.epoch);
  TANDEM_ASSIGN(const Mapping channel_memory,
                map_region(owner, backend, channel_name, channel_bytes(options.channel), Access::kReadWrite));
  WorkerPortOptions port_options;
  port_options.peer_alive = keep_going;
  TANDEM_ASSIGN(const auto port, make_worker_port(channel_memory.bytes(), control->scheduler, port_options));

  const DecoderLimits limits{static_cast<std::int32_t>(options.max_rows),
                             std::min(kLogitRows, static_cast<std::int32_t>(options.max_rows))};
  TANDEM_ASSIGN(const auto decoder, Decoder::create(spec, std::move(weights), backend, limits));
  Lane lane(*decoder, backend, *stream, KvView{kv_memory.data(), kv.layout}, options.num_blocks,
            control->lanes[options.lane.value]);
  TANDEM_TRY(port->send(Result{}));
  TANDEM_LOG(kInfo, "lane {} is ready after {} ms ({})", options.lane.value, (steady_now_us() - start_us) / 1000,
             backend.info().description);
  const absl::Status ended = lane.run(*port, keep_going);
  return absl::IsUnavailable(ended) ? absl::OkStatus() : ended;
}

}  // namespace tandem
