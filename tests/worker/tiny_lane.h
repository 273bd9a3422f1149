// A lane over the tiny model on the CPU backend, with its own weights and KV memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/backend.h"
#include "model/weights.h"
#include "worker/lane.h"

namespace tandem::testing {

struct TinyLane {
  static constexpr std::uint32_t kNumBlocks = 16;
  static constexpr std::int32_t kBlockTokens = 16;

  TinyLane() {
    const WeightsLayout layout = *WeightsLayout::create(*model, *backend);
    weights = *backend->allocate(layout.bytes());
    layout.fill({weights.get(), layout.bytes()}, *backend, *stream, [](std::size_t, std::size_t) {});
    decoder = *Decoder::create(model->spec(), *layout.bind({weights.get(), layout.bytes()}), *backend, {64, 4});
    KvView kv{nullptr, kv_layout(model->spec(), DType::kF32, kBlockTokens)};
    memory = *backend->allocate(static_cast<std::size_t>(kv.layout.block_bytes()) * kNumBlocks);
    kv.base = memory.get();
    lane = std::make_unique<Lane>(*decoder, *backend, *stream, kv, kNumBlocks, counters);
  }

  LaneCounters counters;
  std::unique_ptr<Backend> backend = *cpu::create_cpu_backend({});
  std::unique_ptr<Stream> stream = *backend->open_stream(Share{});
  std::unique_ptr<ModelFile> model = *open_model(std::string(TANDEM_TEST_DATA) + "/models/tiny-llama");
  Backend::Buffer weights, memory;
  std::unique_ptr<Decoder> decoder;
  std::unique_ptr<Lane> lane;
};

// Appends one sequence's tokens from `position`, with `num_blocks` blocks in a row, to be sampled greedily.
inline void add_item(Plan& plan, const std::vector<TokenId>& tokens, std::uint32_t position, std::uint32_t first_block,
                     std::uint32_t num_blocks) {
  PlanItem& item = plan.items.emplace_back();
  item.sequence = SequenceId{7 + plan.items.size()};
  item.position = position;
  item.tokens = {static_cast<std::uint32_t>(plan.tokens.size()), static_cast<std::uint32_t>(tokens.size())};
  item.blocks = {static_cast<std::uint32_t>(plan.blocks.size()), num_blocks};
  item.wants_sample = 1;
  plan.tokens.insert(plan.tokens.end(), tokens.begin(), tokens.end());
  for (std::uint32_t block = 0; block < num_blocks; ++block) plan.blocks.push_back({first_block + block});
}

}  // namespace tandem::testing
